"""Which event may follow which; a reply folded, unfolded, and put in sequence."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Delta, End, Event, Failed, Finish, PartEnd, PartStart, Start, UsageReport
from gateway.core.lifecycle import TRANSITIONS, IllegalEvent, Reply, ReplyChoice, ReplyPart, checked, fold
from gateway.core.usage import Usage
from tests.support.sampled import examples
from tests.unit.core.replies import replies, streams, unfold

START = Start("id", "m", 1)
OPEN = PartStart(0, 0, "text")
STOP = Finish(0, "stop", "stop")
BROKEN = Failed(GatewayError(Kind.UPSTREAM, "broken"))


def test_the_table_knows_every_event() -> None:
    assert {event for allowed in TRANSITIONS.values() for event in allowed} == set(get_args(Event))


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([], "stop without"),
        ([START], "stop without"),
        ([End()], "End may not come while the reply is new"),
        ([OPEN], "PartStart may not come while the reply is new"),
        ([START, START], "Start may not come while the reply is open"),
        ([START, End(), End()], "while the reply is over"),
        ([START, End(), BROKEN], "while the reply is over"),
        ([BROKEN, START], "while the reply is over"),
        ([START, Delta(0, 0, "a")], "Delta for part 0 of choice 0, which is not open"),
        ([START, PartEnd(0, 0)], "PartEnd for part 0 of choice 0, which is not open"),
        ([START, OPEN, OPEN], "starts twice"),
        ([START, OPEN, PartEnd(0, 0), OPEN], "starts twice"),
        ([START, OPEN, PartEnd(0, 0), PartEnd(0, 0)], "not open"),
        ([START, OPEN, STOP], "are open"),
        ([START, OPEN, PartEnd(0, 0), End()], "have no Finish"),
        ([START, STOP, STOP], "after Finish"),
        ([START, STOP, PartStart(0, 1, "text")], "after Finish"),
        ([START, OPEN, Delta(1, 0, "a")], "choice 1"),
        ([START, STOP, PartStart(1, 0, "text"), PartEnd(1, 0), End()], r"choices \[1\] have no Finish"),
    ],
)
def test_what_may_not_follow_is_a_bug_of_ours(events: list[Event], why: str) -> None:
    with pytest.raises(IllegalEvent, match=why):
        list(checked(events))


@pytest.mark.parametrize(
    "events",
    [
        [BROKEN],
        [START, BROKEN],
        [START, OPEN, Delta(0, 0, "a"), BROKEN],
        [START, STOP, BROKEN],
        [START, End()],
        [START, STOP, End()],
        [START, UsageReport(Usage(1, 1)), STOP, UsageReport(Usage(1, 2)), End()],
        [START, PartStart(0, 3, "tool"), OPEN, PartEnd(0, 3), Delta(0, 0, "a"), PartEnd(0, 0), STOP, End()],
    ],
)
def test_what_may_follow_passes_unchanged(events: list[Event]) -> None:
    assert list(checked(events)) == events


def test_checked_is_lazy() -> None:
    source: list[Event] = [START, End()]
    events = checked(source)
    assert next(events) is START


@given(streams)
def test_legal_streams_pass(events: list[Event]) -> None:
    assert list(checked(events)) == events


@given(streams, st.data())
def test_a_stream_without_one_of_its_ends_does_not_pass(events: list[Event], data: st.DataObject) -> None:
    """PartEnd, Finish of a choice that had parts, and End: none may be missing."""
    had = {event.choice for event in events if isinstance(event, PartStart)}
    ends = [
        place
        for place, event in enumerate(events)
        if isinstance(event, (PartEnd, End)) or (isinstance(event, Finish) and event.choice in had)
    ]
    place = data.draw(st.sampled_from(ends))
    rest: list[Event] = events[:place] + events[place + 1 :]
    with pytest.raises(IllegalEvent):
        list(checked(rest))


# -- fold and unfold ------------------------------------------------------------------------------------------------


@settings(max_examples=examples(50))
@given(replies())
def test_unfold_then_fold_is_the_same_reply(reply: Reply) -> None:
    assert fold(unfold(reply)) == reply


@given(streams)
def test_fold_then_unfold_then_fold_is_the_same_reply(events: list[Event]) -> None:
    reply = fold(events)
    assert fold(unfold(reply)) == reply


def test_fold_joins_what_is_split_and_sorts_what_is_mixed() -> None:
    call = Raw(b'[{"token":"a"}]')
    reply = fold(
        [
            START,
            PartStart(1, 0, "text"),
            PartStart(0, 0, "tool", "c1", "f"),
            PartStart(0, 1, "tool", "c2", "g"),
            Delta(0, 1, "{"),
            Delta(1, 0, "He", (1, 2), call),
            Delta(0, 0, "[]"),
            Delta(0, 1, "}"),
            Delta(1, 0, "llo", (3,)),
            PartEnd(0, 0),
            PartEnd(0, 1),
            PartEnd(1, 0),
            Finish(1, "length", "length"),
            UsageReport(Usage(1, 1)),
            Finish(0, "tool_calls", "tool_calls", None, {"x": Raw(b"1")}),
            UsageReport(Usage(1, 5)),
            End(),
        ]
    )
    assert reply == Reply(
        START,
        [
            ReplyChoice(
                0,
                [ReplyPart("tool", "[]", "c1", "f"), ReplyPart("tool", "{}", "c2", "g")],
                "tool_calls",
                "tool_calls",
                extra={"x": Raw(b"1")},
            ),
            ReplyChoice(1, [ReplyPart("text", "Hello", tokens=(1, 2, 3), logprobs=(call,))], "length", "length"),
        ],
        Usage(1, 5),
    )


def test_fold_raises_what_failed() -> None:
    with pytest.raises(GatewayError, match="broken"):
        fold([START, OPEN, Delta(0, 0, "a"), BROKEN])


def test_fold_refuses_what_is_illegal() -> None:
    with pytest.raises(IllegalEvent):
        fold([START, OPEN])


def test_a_choice_tells_its_parts_apart() -> None:
    parts = [
        ReplyPart("thinking", "hm"),
        ReplyPart("text", "a", tokens=(1,), logprobs=(Raw(b"[1]"),)),
        ReplyPart("tool", "{}", "c", "f"),
        ReplyPart("text", "b", tokens=(2,), logprobs=(Raw(b"[2]"),)),
    ]
    choice = ReplyChoice(0, parts)
    assert choice.text() == "ab"
    assert choice.text("thinking") == "hm"
    assert choice.text("refusal") is None
    assert choice.calls == [parts[2]]
    assert choice.tokens == (1, 2)
    assert choice.logprobs == (Raw(b"[1]"), Raw(b"[2]"))
