"""A reply that a second worker goes on with: cut behind each frame, for each client, backend and lane.

The law: the client gets the bytes that one worker alone would have caused, with one id and one usage.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

import pytest
from msgspec.structs import replace

from gateway.core.byte_budget import ByteBudget, Held
from gateway.core.continuation import FOLD_LENGTH, MOST, NO_TEXT, SentText
from gateway.core.events import Delta, Event, Finish
from gateway.core.ports import Lane, Partial
from gateway.core.usage import Usage
from gateway.translation.lanes import EventLane, lane_for
from tests.laws.conformance import workers
from tests.laws.conformance.cases import BACKENDS, CASES, DIALECTS, Case
from tests.laws.conformance.scenarios import USAGE, Scenario
from tests.support.sampled import sampled

_TEXTS = ("usage alone", "unicode", "text ended by its last chunk")
GROUPS: dict[str, list[Case]] = {}
for _case in CASES:
    if _case.scenario.name in _TEXTS:
        GROUPS.setdefault(f"{_case.client.name}-{_case.lane}", []).append(_case)
OTHERS = [case for case in CASES if case.scenario.name in ("tool call", "two choices", "thinking, text", "refusal")]
each = pytest.mark.parametrize("cases", sampled(GROUPS.values(), 3, lambda cases: cases[0].client.dialect), ids=GROUPS)


def opened(case: Case) -> Lane:
    op, backend, dialect = case.op(), BACKENDS[case.backend], DIALECTS[case.client.dialect]
    seen = SentText(Held(ByteBudget(), ""))
    if case.lane == "bytes":
        return dialect.passthrough[backend.reply_wire(op)].lane(op, seen)
    return EventLane(partial(backend.reader, op), dialect.writer(op), text=seen)


def deltas(events: tuple[Event, ...]) -> list[Delta]:
    return [event for event in events if isinstance(event, Delta)]


def rest(scenario: Scenario, there: int, repeated: str = "") -> Scenario:
    """What a second worker writes if the text of `there` deltas is there, of which it repeats the end."""
    said = deltas(scenario.events)
    events = [event for event in scenario.events if event not in said[:there]]
    if there == len(said) and not repeated:
        events = [event for event in events if isinstance(event, Finish)]
    if repeated:
        events.insert(1, Delta(0, 0, repeated, (7,)))
    return replace(scenario, events=tuple(events))


def second(case: Case, there: int, monkeypatch: pytest.MonkeyPatch, repeated: str = "") -> list[bytes]:
    """The frames of a second worker, with ids of its own."""
    again = 1 if repeated else 0
    monkeypatch.setattr(workers, "USAGE", Usage(12 + there - again, 7 - there + again))
    return [frame.replace(b"cmpl-1", b"cmpl-2") for frame in case.worker.frames(rest(case.scenario, there, repeated))]


def cuts(cases: list[Case]) -> Iterator[tuple[Case, Lane, bytes, bytes]]:
    """(a case, a lane that was fed its first frames, what the client got of them, what it gets of all)."""
    for case in cases:
        frames = case.frames
        whole = opened(case)
        expected = b"".join(map(whole.feed, frames)) + whole.eof()
        for at in range(1, len(frames)):
            lane = opened(case)
            begun = b"".join(map(lane.feed, frames[:at]))
            if not lane.done:
                lane.eof()
                yield case, lane, begun, expected


@each
def test_the_client_gets_what_one_worker_would_have_sent(cases: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    tried = 0
    for case, lane, begun, expected in cuts(cases):
        seen = lane.partial()
        assert isinstance(seen, Partial)
        if seen.finished:
            continue
        with monkeypatch.context() as patch:
            lane.splice("")
            assert lane.error is None
            blocks = second(case, seen.tokens, patch)
            out = begun + b"".join(map(lane.feed, blocks)) + (b"" if lane.done else lane.eof())
        assert lane.done, lane.error
        assert out == expected
        assert lane.usage is None or (lane.usage.input, lane.usage.output) == (USAGE.input, USAGE.output)
        tried += 1
    assert tried


@each
@pytest.mark.parametrize("first", [0, 1])
def test_workers_may_count_their_only_choice_from_elsewhere(
    cases: list[Case], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's choice keeps the index that it began with; a writer knows no other."""

    def counted(block: bytes, index: int) -> bytes:
        for space in (b"", b" "):
            block = block.replace(b'"index":%b0' % space, b'"index":%b%d' % (space, index))
        return block

    for case in cases:
        frames = [counted(frame, first) for frame in case.frames]
        alone = opened(case)
        expected = b"".join(map(alone.feed, frames)) + (b"" if alone.done else alone.eof())
        for at in range(1, len(frames)):
            lane = opened(case)
            begun = b"".join(map(lane.feed, frames[:at]))
            over = lane.done
            if over:
                continue
            lane.eof()
            seen = lane.partial()
            assert isinstance(seen, Partial)
            if seen.finished:
                continue
            if not seen.tokens and first:
                continue  # nothing was begun: the second worker's choice is the client's
            with monkeypatch.context() as patch:
                lane.splice("")
                out = begun + b"".join(lane.feed(counted(one, 1 - first)) for one in second(case, seen.tokens, patch))
                out += b"" if lane.done else lane.eof()
            assert lane.done, lane.error
            if seen.tokens or case.lane == "events":
                assert out == expected
            ended = opened(case)
            for frame in frames[:at]:
                ended.feed(frame)
            ended.eof()
            ended.conclude(Usage(USAGE.input, USAGE.output))
            assert ended.done
            assert ended.error is None


@each
def test_repeated_text_reaches_the_client_once(cases: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    for case, lane, begun, expected in cuts(cases):
        seen = lane.partial()
        assert isinstance(seen, Partial)
        if seen.finished or not seen.text:
            continue
        with monkeypatch.context() as patch:
            repeated = seen.text[-1:]
            lane.splice(repeated)
            out = begun + b"".join(map(lane.feed, second(case, seen.tokens, patch, repeated)))
            out += b"" if lane.done else lane.eof()
        assert lane.done, lane.error
        assert out == expected


@each
def test_a_second_worker_may_die_too(cases: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    for case, lane, begun, expected in cuts(cases):
        seen = lane.partial()
        while isinstance(seen, Partial) and not seen.finished and not lane.done:
            with monkeypatch.context() as patch:
                lane.splice("")
                # Up to the first frame that has something new, then it is gone.
                for frame in second(case, seen.tokens, patch):
                    begun += lane.feed(frame)
                    if lane.done or lane.produced > seen.tokens:
                        break
            if not lane.done:
                lane.eof()
                seen = lane.partial()
        if lane.done:
            assert begun == expected


@each
def test_only_the_end_is_missing(cases: list[Case]) -> None:
    """A death behind the last token, before the end mark: the reply is whole, and its end is written."""
    for case, lane, begun, expected in cuts(cases):
        seen = lane.partial()
        if isinstance(seen, Partial) and seen.finished:
            out = begun + lane.conclude(Usage(USAGE.input, USAGE.output))
            assert lane.done
            assert lane.error is None
            if case.scenario.usage != "absent":
                no_details = b',"prompt_tokens_details":null'
                assert out.replace(no_details, b"") == expected.replace(no_details, b"")


@each
def test_keepalives_before_a_worker_answers_are_of_its_reply(cases: list[Case]) -> None:
    """The lane of an early head sends them, also while the worker's lane waits for its first token."""
    for case in cases:
        op, backend, dialect = case.op(), BACKENDS[case.backend], DIALECTS[case.client.dialect]
        early, late = lane_for(dialect, backend, op), lane_for(dialect, backend, op)
        out = early.keepalive() + early.keepalive() + b"".join(map(late.feed, case.frames)) + late.eof()
        heard, expected = case.client.hear(out), case.client.hear(b"".join(map(opened(case).feed, case.frames)))
        assert heard.complete
        assert heard.choices == expected.choices


@pytest.mark.parametrize("case", OTHERS, ids=str)
def test_what_cannot_be_taken_up_in_the_middle(case: Case) -> None:
    """Thinking, tool calls, refusals, several choices: the reason is named as soon as the client has seen some."""
    op = case.op()
    lane = lane_for(DIALECTS[case.client.dialect], BACKENDS[case.backend], op, text=SentText(Held(ByteBudget(), "")))
    for frame in case.frames:
        before = lane.produced
        lane.feed(frame)
        if lane.produced > before and not lane.done:
            seen = lane.partial()
            if not isinstance(seen, str):
                assert seen.finished or not seen.text, case.scenario.name


@pytest.mark.parametrize("case", [case for case in OTHERS if case.scenario.name == "thinking, text"], ids=str)
def test_a_reply_of_which_nothing_was_seen_may_begin_with_thinking(case: Case) -> None:
    """A worker that dies behind the head of its reply has thought nothing that another one must go on with."""
    whole = opened(case)
    expected = b"".join(map(whole.feed, case.frames)) + whole.eof()
    lane, begun = opened(case), b""
    for frame in case.frames:
        before = lane.partial()
        if isinstance(before, Partial) and not before.tokens and not before.finished and begun:
            cut = opened(case)
            out = b"".join(map(cut.feed, case.frames[: case.frames.index(frame)]))
            cut.eof()
            cut.splice("")
            out += b"".join(cut.feed(one.replace(b"cmpl-1", b"cmpl-2")) for one in case.frames)
            out += b"" if cut.done else cut.eof()
            assert cut.done, cut.error
            assert out == expected
        begun += lane.feed(frame)
    assert whole.done


def test_a_text_that_is_too_long_or_finds_no_room_is_not_kept() -> None:
    budget = ByteBudget(40_000)
    kept, late = SentText(Held(budget, "one")), SentText(Held(budget, "one"))
    for seen, letter in ((kept, "a"), (late, "b")):
        seen.add(letter * 20_000)
        for _ in range(20):
            seen.add(letter)
        seen.fold()
    assert (kept.lost, late.lost) == (None, "memory")
    assert (kept.text, late.text) == ("a" * 20_020, "")
    for seen in (kept, kept, late):  # to close it twice gives nothing back twice
        seen.close()
        assert budget.reserved == 0
    long = SentText(Held(ByteBudget(), ""))
    for _ in range(MOST // 1024 + 32):
        long.add("c" * 1024)
        long.fold()
    assert (long.lost, long.text) == ("long", "")
    NO_TEXT.add("another client's words")
    assert (long.text, NO_TEXT.text) == ("", "")


def frames_of(case: Case, count: int, length: int) -> list[bytes]:
    """A reply of so many deltas of so many characters."""
    events = case.scenario.events
    first = next(at for at, event in enumerate(events) if isinstance(event, Delta))
    text = [Delta(0, 0, f"{at:0{length}}", (7,)) for at in range(count)]
    after = [event for event in events[first:] if not isinstance(event, Delta)]
    return case.worker.frames(replace(case.scenario, events=(*events[:first], *text, *after)))


@each
def test_what_is_kept_is_counted_whatever_the_deltas_length(cases: list[Case]) -> None:
    """But for the last deltas of a text: at most as much as the first step of the budget holds."""
    for case in cases:
        for count, length in ((500, 10), (60, 3000)):
            budget = ByteBudget()
            op, backend, dialect = case.op(), BACKENDS[case.backend], DIALECTS[case.client.dialect]
            seen = SentText(Held(budget, "one"))
            lane = lane_for(dialect, backend, op, text=seen)
            for at, frame in enumerate(frames_of(case, count, length)):
                lane.feed(frame)
                assert len(seen.text) <= budget.reserved + 48 * FOLD_LENGTH, (case, at)
            assert (lane.produced, seen.lost) == (count, None)
            assert len(seen.text) == count * length


@each
def test_a_kept_chunk_costs_no_more_calls(cases: list[Case]) -> None:
    """The gateway's functions that are called for a chunk: with its text kept, 1 more for 16 chunks at most."""

    def calls(case: Case, seen: SentText) -> int:
        op, backend, dialect = case.op(), BACKENDS[case.backend], DIALECTS[case.client.dialect]
        lane, frames, entered = lane_for(dialect, backend, op, text=seen), frames_of(case, 160, 5), []
        before = sys.getprofile()
        sys.setprofile(lambda frame, event, _: entered.append(frame.f_code) if event == "call" else None)
        try:
            for frame in frames:
                lane.feed(frame)
        finally:
            sys.setprofile(before)
        assert lane.produced == 160
        return len(entered)

    for case in cases:
        calls(case, NO_TEXT)  # the first stream of a model teaches its templates to those behind it
        assert calls(case, SentText(Held(ByteBudget(), ""))) <= calls(case, NO_TEXT) + 10, case
