"""Streams that a guard is shown in windows, whatever the order in which their choices come."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec import Raw

from gateway.core.events import Delta, End, Event, Finish, PartEnd, PartStart, Start
from gateway.core.lifecycle import checked, fold
from gateway.translation.guarded import GuardedWriter
from gateway.translation.texts import Shown, texts_of_reply

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


def _with_calls(chance: random.Random) -> list[Event]:
    """A reply of several choices with texts and calls, some of which have no arguments."""
    events: list[Event] = [Start("x", "m", 1)]
    for choice in range(chance.randrange(1, 3)):
        for index in range(chance.randrange(1, 5)):
            call = chance.random() < 0.6
            events.append(
                PartStart(choice, index, "tool", f"c{index}", "f") if call else PartStart(choice, index, "text")
            )
            if not call or chance.random() < 0.5:
                events += [Delta(choice, index, "ab" * chance.randrange(1, 30)) for _ in range(chance.randrange(1, 4))]
            events.append(PartEnd(choice, index))
        events.append(Finish(choice, "stop", "stop"))
    return [*events, End()]


@pytest.mark.parametrize("window", [None, WINDOW])
@pytest.mark.parametrize("overlap", [0, OVERLAP])
def test_a_guard_sees_every_part_of_a_stream_that_it_sees_of_the_whole_reply(window: int | None, overlap: int) -> None:
    """Calls without arguments, too: they have a name alone. What it puts in the place of one reaches the client."""
    windows: list[list[Shown]] = []
    for seed in range(200):
        events = _with_calls(random.Random(seed))
        windows.clear()
        writer = Writer()
        held = GuardedWriter(writer, window, overlap, lambda texts, last: windows.append(texts))
        answered = 0
        for event in events:
            held.write(event)
            while answered < len(windows):
                answered += 1
                held.allowed(["{}" if shown.text == "" else None for shown in windows[answered - 1]])
        held.take()
        whole, got = fold(events), fold(writer.events)
        wanted = texts_of_reply(whole)
        calls = [shown for texts in windows for shown in texts if shown.kind == "tool" and not shown.text]
        assert calls == [shown for shown in wanted if not shown.text], seed
        shown_once = [shown for texts in windows for shown in texts]
        assert window is not None or sorted(shown_once, key=str) == sorted(wanted, key=str), seed
        told = [part.text or "{}" for choice in whole.choices for part in choice.parts]
        assert [part.text for choice in got.choices for part in choice.parts] == told, seed


@pytest.mark.parametrize("window", [None, 1 << 20])
def test_all_that_is_held_counts(window: int | None) -> None:
    """A token's log probabilities have a hundred times the bytes of its text, and thousands of tokens are held."""
    measured = Raw(b'[{"token":"a","logprob":-1.0,"bytes":[97],"top_logprobs":[%b]}]' % (b" " * 2000))
    mores: list[dict[str, Any]] = [{"logprobs": measured}, {"tokens": (7,)}, {}]
    for more in mores:
        held = GuardedWriter(Writer(), window, 0, lambda texts, last: None)
        held.write(Start("x", "m", 1))
        held.write(PartStart(0, 0, "text"))
        before = held.buffered_bytes
        for _ in range(100):
            held.write(Delta(0, 0, "a", **more))
        each = len(memoryview(measured)) if "logprobs" in more else 100 if more or window is not None else 1
        assert held.buffered_bytes - before >= 100 * each, more


def test_a_long_text_is_few_events_behind_its_guard() -> None:
    """To write all deltas of a long reply at once would hold up the event loop. Tokens and log probabilities stay."""
    mores: list[tuple[dict[str, Any], int]] = [({}, 40), ({"tokens": (7,)}, 5000), ({"logprobs": Raw(b"[]")}, 5000)]
    for more, most in mores:
        writer = Writer()
        held = GuardedWriter(writer, None, 0, lambda texts, last: None)
        deltas = [Delta(0, 0, f"{n}.", **more) for n in range(5000)]
        events: list[Event] = [Start("x", "m", 1), PartStart(0, 0, "text"), *deltas]
        for event in [*events, Delta(0, 0, "!", last=True), PartEnd(0, 0), Finish(0, "stop", "stop"), End()]:
            held.write(event)
        held.allowed([None])
        held.take()
        (choice,) = fold(writer.events).choices
        assert choice.text() == "".join(f"{n}." for n in range(5000)) + "!"
        assert len([event for event in writer.events if type(event) is Delta]) <= most + 1
        assert [event for event in writer.events if type(event) is Delta][-1] == Delta(0, 0, "!", last=True)
        assert len(choice.parts[0].tokens) == (5000 if "tokens" in more else 0)
