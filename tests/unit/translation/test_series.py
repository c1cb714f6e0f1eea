"""Several requests for the choices of one reply, at each backend."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from gateway.backends import REGISTRY, create
from gateway.core.events import Delta, End, Event, Finish, PartEnd, PartStart, Start, UsageReport
from gateway.core.lifecycle import fold
from gateway.core.messages import Complete
from gateway.core.ports import Capabilities
from gateway.core.usage import Usage
from gateway.translation import series
from tests.laws.conformance.cases import reply_wire
from tests.laws.conformance.scenarios import Scenario
from tests.laws.conformance.workers import WORKERS

CAN = Capabilities("w", max_context=2048)


def asks(*seeds: int, **members: Any) -> Complete:
    return Complete(model="m", prompts=("hi",), n=len(seeds) or 1, seeds=seeds, **members)


def words(*texts: str) -> Scenario:
    events: list[Event] = []
    for choice, text in enumerate(texts):
        events += [PartStart(choice, 0, "text"), Delta(choice, 0, text, (7,)), PartEnd(choice, 0)]
        events += [Finish(choice, "stop", "stop")]
    return Scenario("words", "complete", tuple(events), usage="alone")


def test_runs() -> None:
    def parts(*seeds: int) -> list[tuple[int, tuple[int, ...]]]:
        return [(run.n, run.seeds) for run in series.runs(asks(*seeds))]

    assert parts(5, 6, 7) == [(3, (5, 6, 7))]
    assert parts(5, 6, 9, 3, 4) == [(2, (5, 6)), (1, (9,)), (2, (3, 4))]
    assert parts(5, 5, 5) == [(1, (5,))] * 3
    assert parts() == [(1, ())]


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_every_backend_gets_each_seed_and_no_other(name: str) -> None:
    backend = create(name)
    for run in series.runs(asks(9, 5)):
        body = backend.write(run, CAN).body
        assert b'"seed":%d' % run.seeds[0] in body.replace(b" ", b"")
        assert b'"n":' not in body


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_streams_and_whole_replies_are_one_reply(name: str) -> None:
    backend, op = create(name), asks(9, 5, stream=True)
    runs = series.runs(op)
    worker = WORKERS[reply_wire(name, "complete")]
    scenarios = [worker.adapt(words(text)) for text in ("one", "two")]
    reader = series.SeriesReader(backend.reader, runs)
    events: list[Event] = []
    for scenario in scenarios:
        for frame in worker.frames(scenario):
            events += reader.feed(frame)
        events += reader.eof()
    streamed = fold(events)
    assert [type(event) for event in events].count(Start) == 1
    assert [type(event) for event in events].count(UsageReport) == 1
    whole = series.joined(
        [fold(backend.read(worker.whole(scenario), run)) for scenario, run in zip(scenarios, runs, strict=True)]
    )
    for reply in (streamed, whole):
        assert [(choice.index, choice.text()) for choice in reply.choices] == [(0, "one"), (1, "two")]
        assert reply.usage is not None


@pytest.mark.parametrize("name", sorted(REGISTRY))
@pytest.mark.parametrize("part", [0, 1])
def test_a_stream_that_breaks_off_is_not_the_end(name: str, part: int) -> None:
    backend, runs = create(name), series.runs(asks(9, 5, stream=True))
    worker = WORKERS[reply_wire(name, "complete")]
    frames = worker.frames(worker.adapt(words("one two")))
    reader = series.SeriesReader(partial(backend.reader), runs)
    events: list[Event] = []
    for number in range(part + 1):
        for frame in frames[:1] if number == part else frames:
            events += reader.feed(frame)
        events += reader.eof()
    assert type(events[-1]).__name__ == "Failed"
    assert End not in [type(event) for event in events]


def test_usage_counts_the_prompt_once() -> None:
    parts = [Usage(5, 3, cached=1, reasoning=2), Usage(5, 4, cached=5, reasoning=1)]
    assert series.joined_usage(parts) == Usage(5, 7, cached=1, reasoning=3)
    assert series.joined_usage([parts[0], None]) is None
    assert series.joined_usage([parts[0], Usage(5, None)]) == Usage(5, None, cached=1)
