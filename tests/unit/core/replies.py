"""Whole replies and legal event sequences, drawn at random."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from hypothesis import strategies as st
from msgspec import Raw

from gateway.core.events import Delta, End, Event, Finish, PartEnd, PartKind, PartStart, Reason, Start, UsageReport
from gateway.core.lifecycle import Reply, ReplyChoice, ReplyPart
from gateway.core.usage import Usage

KINDS: tuple[PartKind, ...] = ("text", "thinking", "tool", "refusal")
REASONS: tuple[Reason, ...] = ("stop", "length", "tool_calls", "content_filter")
COUNTS = st.none() | st.integers(0, 9)

usages = st.builds(Usage, COUNTS, COUNTS, COUNTS, COUNTS)
starts = st.builds(
    Start,
    st.sampled_from(["", "chatcmpl-1"]),
    st.sampled_from(["", "m"]),
    st.integers(0, 2**31),
    st.none() | st.just("fp"),
    st.none() | st.just("default"),
)
_logprobs = st.lists(st.sampled_from([Raw(b"[]"), Raw(b'[{"token":"a"}]')]), max_size=3).map(tuple)
_tokens = st.lists(st.integers(0, 9), max_size=3).map(tuple)


def _part(kind: PartKind, text: str, tokens: tuple[int, ...], logprobs: tuple[Raw, ...]) -> ReplyPart:
    call: dict[str, Any] = {"call_id": "call_1", "name": "f"} if kind == "tool" else {}
    return ReplyPart(kind, text, tokens=tokens, logprobs=logprobs, **call)


parts = st.builds(_part, st.sampled_from(KINDS), st.text(max_size=5), _tokens, _logprobs)


@st.composite
def replies(draw: st.DrawFn) -> Reply:
    indices = draw(st.sets(st.integers(0, 5), max_size=3))
    choices = [
        ReplyChoice(
            index,
            draw(st.lists(parts, max_size=3)),
            draw(st.sampled_from(REASONS)),
            draw(st.sampled_from(["stop", "eos_token"])),
            draw(st.sampled_from([None, "END", 7])),
        )
        for index in sorted(indices)
    ]
    return Reply(draw(starts), choices, draw(st.none() | usages))


def stream(seed: int) -> list[Event]:
    """A legal sequence whose choices, and parts within a choice, interleave as they like."""
    random = Random(seed)
    left = {index: random.randint(0, 4) for index in range(random.randint(0, 3))}
    made = dict.fromkeys(left, 0)
    opened: dict[int, list[int]] = {index: [] for index in left}
    events: list[Event] = [Start("chatcmpl-1", "m", seed)]
    while left:
        choice = random.choice(sorted(left))
        step = random.choice(["open", "more", "more", "close", "finish", "usage"])
        if step == "usage":
            events.append(UsageReport(Usage(1, len(events))))
        elif step == "open" and left[choice]:
            left[choice] -= 1
            kind = random.choice(KINDS)
            events.append(PartStart(choice, made[choice], kind, name="f" if kind == "tool" else None))
            opened[choice].append(made[choice])
            made[choice] += 1
        elif step in ("more", "close") and opened[choice]:
            index = random.choice(opened[choice])
            if step == "more":
                events.append(Delta(choice, index, random.choice(["", "a", "bc", "\u2028"]), (len(events),)))
            else:
                opened[choice].remove(index)
                events.append(PartEnd(choice, index))
        elif step == "finish" and not left[choice]:
            events += [PartEnd(choice, index) for index in opened[choice]]
            events.append(Finish(choice, random.choice(REASONS), "stop"))
            del left[choice]
    events.append(End())
    return events


streams = st.integers(0, 2**32).map(stream)


def unfold(reply: Reply) -> Iterator[Event]:
    """The events of a whole reply, each part as one Delta: `fold(unfold(r)) == r`."""
    yield reply.start
    for choice in reply.choices:
        for index, part in enumerate(choice.parts):
            yield PartStart(choice.index, index, part.kind, part.call_id, part.name)
            if part.text or part.tokens or part.logprobs:
                logprobs = part.logprobs or (None,)
                yield Delta(choice.index, index, part.text, part.tokens, logprobs[0])
                for more in logprobs[1:]:
                    yield Delta(choice.index, index, "", (), more)
            yield PartEnd(choice.index, index)
        yield Finish(
            choice.index, choice.reason, choice.raw_reason, choice.stop_sequence, choice.extra, choice.end_token
        )
    if reply.usage is not None:
        yield UsageReport(reply.usage)
    yield End()
