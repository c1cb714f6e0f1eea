"""What the suites of this folder cross: every client, backend and lane with each scenario that both have words for."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest
from msgspec import Struct
from msgspec.structs import replace

from gateway import backends, dialects
from gateway.core.events import End, Event, Failed
from gateway.core.lifecycle import checked
from gateway.core.messages import Chat, Complete
from gateway.core.ports import Backend, Capabilities, Dialect, Lane, Settings, StreamReader
from gateway.dialects.friendli import Friendli
from gateway.translation.lanes import EventLane
from tests.laws.conformance.clients import CLIENTS, Client
from tests.laws.conformance.scenarios import SCENARIOS, START, Scenario
from tests.laws.conformance.workers import WORKERS, Worker
from tests.support.sampled import sampled

Count = Callable[[str, object], None]
CAN = Capabilities("sim")
DIALECTS: dict[str, Dialect] = {name: dialects.create(name, Settings()) for name in dialects.REGISTRY}
# The seeds that this dialect draws are the same in every run of a case.
_friendli = Friendli()
_friendli.draw = lambda below: 7
DIALECTS["friendli"] = _friendli
BACKENDS: dict[str, Backend] = {name: backends.create(name) for name in backends.REGISTRY}
OPS: dict[str, Chat | Complete] = {
    "chat": Chat(model="m", messages=()),
    "complete": Complete(model="m", prompts=("hi",)),
}


@contextmanager
def stopped_clock() -> Iterator[None]:
    """No time passes, and the ids that a backend draws are the same in every run of a case."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.wire.clock.nanoseconds", lambda: 1)
        patch.setattr("gateway.wire.clock.seconds", lambda: float(START.created))
        patch.setattr("gateway.wire.clock.new_id", lambda prefix: prefix + "0" * 24)
        yield


def reply_wire(backend: str, operation: str, scenario: Scenario | None = None) -> str:
    """The wire that `backend` is answered in: it may depend on the choices and stop phrases of `scenario`."""
    op = OPS[operation]
    if scenario is not None:
        op = replace(op, n=scenario.asks.get("n", 1), stop=tuple(scenario.asks.get("stop", ())))
    return BACKENDS[backend].reply_wire(op)


class Watched:
    """A reader whose events are checked one by one, and kept."""

    def __init__(self, reader: StreamReader) -> None:
        self._reader = reader
        self.seen: list[Event] = []
        self._next: deque[Event] = deque()
        self._checked = checked(iter(self._next.popleft, None))

    @property
    def buffered_bytes(self) -> int:
        return self._reader.buffered_bytes

    @property
    def over(self) -> bool:
        return bool(self.seen) and isinstance(self.seen[-1], (End, Failed))

    def _watch(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            self._next.append(event)
            self.seen.append(next(self._checked))
            yield event

    def feed(self, block: bytes) -> Iterator[Event]:
        return self._watch(self._reader.feed(block))

    def eof(self) -> Iterator[Event]:
        return self._watch(self._reader.eof())


class Case(Struct, frozen=True):
    """One client before one backend, hearing one scenario, by one lane."""

    client: Client
    backend: str
    scenario: Scenario
    lane: str = "events"

    def __str__(self) -> str:
        return f"{self.client.name}-{self.backend}-{self.lane}-{self.scenario.name}"

    @property
    def worker(self) -> Worker:
        return WORKERS[reply_wire(self.backend, self.client.operation, self.scenario)]

    @property
    def frames(self) -> list[bytes]:
        return self.worker.frames(self.scenario)

    def op(self, *, stream: bool = True) -> Chat | Complete:
        op = DIALECTS[self.client.dialect].read(self.client.ask(self.scenario, stream=stream))
        assert isinstance(op, (Chat, Complete))
        op.stream = stream
        op.model = op.model or "m"
        return op

    def open(self) -> tuple[Lane, Watched]:
        op = self.op()
        assert op.stream
        watched = Watched(BACKENDS[self.backend].reader(op))
        dialect = DIALECTS[self.client.dialect]
        if self.lane == "bytes":
            return dialect.passthrough[BACKENDS[self.backend].reply_wire(op)].lane(op), watched
        return EventLane(lambda: watched, dialect.writer(op)), watched


def lanes(client: Client, backend: str, scenario: Scenario | None = None) -> tuple[str, ...]:
    same = reply_wire(backend, client.operation, scenario) in DIALECTS[client.dialect].passthrough
    return ("events", "bytes") if same else ("events",)


def crossed(*scenarios: Scenario) -> list[Case]:
    """Every client, backend and lane with each scenario that both ends have words for."""
    found = []
    for client, backend in itertools.product(CLIENTS, BACKENDS):
        for scenario in scenarios:
            worker = WORKERS.get(reply_wire(backend, client.operation, scenario))
            if client.dialect not in DIALECTS or worker is None:
                continue
            words = {*scenario.needs, scenario.name, scenario.operation}
            if scenario.operation == client.operation and not words & {*client.blind, *worker.lacks}:
                told = worker.adapt(scenario)
                found += [Case(client, backend, told, lane) for lane in lanes(client, backend, scenario)]
    return found


CASES = crossed(*SCENARIOS)
HELLOS = crossed(*(scenario for scenario in SCENARIOS if scenario.name == "usage alone"))
PAIRS: dict[str, list[Case]] = {}
for _case in CASES:
    PAIRS.setdefault(f"{_case.client.name}-{_case.backend}-{_case.lane}", []).append(_case)
every = pytest.mark.parametrize("cases", PAIRS.values(), ids=PAIRS)
one_each = pytest.mark.parametrize("case", sampled(HELLOS, 3, lambda case: (case.client.dialect, case.lane)), ids=str)


def run(case: Case, blocks: list[bytes]) -> tuple[bytes, Lane, Watched]:
    """The whole reply as the pump carries it, its error at the end included."""
    lane, watched = case.open()
    out = b""
    for block in blocks:
        if lane.error is None and not lane.done:
            out += lane.feed(block)
    if lane.error is None and not lane.done:
        out += lane.eof()
    if lane.error is not None and out:
        out += lane.fail(lane.error)
    return out, lane, watched
