"""Streams that a guard is shown in windows, whatever the order in which their choices come."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gateway.core.events import Delta, End, Event, Finish, PartEnd, PartStart, Start
from gateway.core.lifecycle import checked
from gateway.translation.guarded import GuardedWriter
from gateway.translation.texts import Shown

WINDOW, OVERLAP = 40, 12


class Writer:
    """Keeps the events that it is to write."""

    headers: Any = []
    clean_end = True
    buffered_bytes = 0

    def __init__(self) -> None:
        self.events: list[Event] = []

    def keepalive(self) -> bytes:
        return b""

    def write(self, event: Event) -> bytes:
        self.events.append(event)
        return b""


def _reply(chance: random.Random, choices: int, interleaved: bool) -> list[Event]:
    """A reply of several choices, each with a text and a thought before it, in pieces of any length."""
    queues: list[list[Event]] = []
    for choice in range(choices):
        queue: list[Event] = []
        for index in range(2):
            queue.append(PartStart(choice, index, "text" if index else "thinking"))
            for number in range(chance.randrange(60)):
                queue.append(Delta(choice, index, f"{choice}{index}.{number}-🎉"[: chance.randrange(1, 9)]))
            queue.append(PartEnd(choice, index))
        queues.append([*queue, Finish(choice, "stop", "stop")])
    events: list[Event] = [Start("x", "m", 1)]
    while any(queues):
        ready = [queue for queue in queues if queue]
        queue = chance.choice(ready) if interleaved else ready[0]
        # One engine may hold a choice back while the others go on.
        for _ in range(chance.choice((1, 1, 1, 30))):
            if queue:
                events.append(queue.pop(0))
    return [*events, End()]


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("choices", [1, 2, 4, 8])
def test_what_an_overlap_holds_is_seen_together_in_each_choice(choices: int, interleaved: bool) -> None:
    windows: list[list[Shown]] = []

    def ask(texts: list[Shown], last: bool) -> None:
        windows.append(texts)

    for seed in range(30):
        events = _reply(random.Random(seed), choices, interleaved)
        windows.clear()
        writer = Writer()
        held = GuardedWriter(writer, WINDOW, OVERLAP, ask)
        answered, most = 0, 0
        for event in events:
            held.write(event)
            while answered < len(windows):
                most = max(most, sum(len(shown.text) for shown in windows[answered]))
                answered += 1
                held.allowed([None] * len(windows[answered - 1]))
                held.take()
        held.take()
        list(checked(writer.events))
        for choice in range(choices):
            own = [event for event in events if getattr(event, "choice", None) == choice]
            assert [event for event in writer.events if getattr(event, "choice", None) == choice] == own
            for index, kind in enumerate(("thinking", "text")):
                text = "".join(event.text for event in own if type(event) is Delta and event.index == index)
                seen = [one.text for texts in windows for one in texts if (one.choice, one.kind) == (choice, kind)]
                for at in range(max(len(text) - OVERLAP + 1, 0)):
                    assert any(text[at : at + OVERLAP] in one for one in seen), (seed, choice, text[at : at + OVERLAP])
        assert most <= WINDOW + 9 + choices * (OVERLAP + 9)  # no text is shown for ever
