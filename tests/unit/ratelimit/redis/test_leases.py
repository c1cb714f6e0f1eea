"""Leases: several gateways on one server never admit more than the limit, and lose nothing for longer than promised."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import redis
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.config import Limit
from gateway.core.estimate import Cost
from gateway.core.usage import Usage
from gateway.light_task import Promise
from gateway.ratelimit import Subject, SubjectLimiter
from gateway.ratelimit.model import ADMITTED, Plan, Settlement, Verdict
from gateway.ratelimit.plan import Layout, Plans
from gateway.ratelimit.redis import leases
from gateway.ratelimit.redis.batcher import COMPANY, Batcher, _Call
from gateway.ratelimit.redis.codec import ADMIT, LEASE, LOOK, RESET, Operation, Result, pack, unpack
from gateway.ratelimit.redis.leases import LEAST, LIFE, LeasingStore
from gateway.ratelimit.reservation import Reservation
from tests.support.harness import soon
from tests.support.redis_server import Server
from tests.support.sampled import examples
from tests.unit.ratelimit.conftest import Make
from tests.unit.ratelimit.oracle import Log
from tests.unit.ratelimit.test_stores_agree import FAKED, TEXT

GATEWAYS = 3
START = 1_700_000_000.0
MINUTE = 60_000_000
ANN = Subject(key="ann")


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time is set; the server's is the same."""

    now = START

    def time(self) -> float:
        return self.now

    @property
    def us(self) -> int:
        return round(self.now * 1e6)


class AtOnce:
    """In place of a batcher: each call is decided when it is made. Settlements that nobody needs wait for the next."""

    up = True

    def __init__(self, server: Server, clock: Clock, makes_room: Callable[[Plan, int], bool]) -> None:
        self._makes_room = makes_room
        self._run: Any = redis.Redis(port=server.port).register_script(FAKED)
        self._clock = clock
        self._queue: list[Operation] = []

    def ask(
        self, code: int, plan: Plan, what: Any, holder: str = "", behind: Operation | None = None
    ) -> Promise[Result]:
        waiter: Promise[Result] = Promise()
        self._queue.append(Operation(code, holder, plan, what, waiter))
        if behind is not None:
            self._queue.append(behind)
        self.send()
        return waiter

    def post(self, code: int, plan: Plan, what: Any, holder: Any, needed: bool = True) -> None:
        self._queue.append(Operation(code, holder, plan, what))

    def send(self) -> None:
        queue, self._queue, asked = self._queue, [], self._clock.us
        if queue:
            results = unpack(
                self._run(pack(queue, 1 << 62, 30_000_000)[0], [pack(queue, 1 << 62, 30_000_000)[1], self._clock.us])
            )[1]
            for one, result in zip([one for one in queue if one.waiter is not None], results, strict=True):
                assert one.waiter is not None
                refused = one.code == ADMIT and isinstance(result, Verdict) and result.violated != ADMITTED
                if refused and not one.again and self._makes_room(one.plan, asked):
                    one.again = True
                    self._queue.append(one)
                else:
                    one.waiter.bring(result)
            self.send()

    async def drain(self) -> None:
        self.send()


class Gateway(LeasingStore):
    """Without a connection. plans: of two models, with the same counters. running: (plan, name, charged, verdict,
    places in the logs) of requests."""

    def __init__(self, server: Server, clock: Clock, rules: list[Limit]) -> None:
        super().__init__(None)
        self.calls = AtOnce(server, clock, self.make_room)
        self._batchers = [self.calls]  # type: ignore[list-item]
        plans = Plans(rules, Layout())
        self.plans = [plans.of(replace(ANN, model=model)) for model in "ab"]
        self.plan = self.plans[0]
        self.running: list[tuple[Plan, str, list[int], Verdict, list[int]]] = []

    @property
    def leased(self) -> list[int]:
        """What its leases have left, of each limit."""
        return [sum(rest) for rest in zip(*(lease.rest for lease in self._leases), strict=True)] or [0, 0, 0]


class Play:
    """Gateways, and a log of each limit of a rate: the judge."""

    def __init__(self, server: Server, clock: Clock, limits: tuple[int, int, int]) -> None:
        server.command("FLUSHALL")
        requests, tokens, slots = limits
        rules = [
            Limit(name="requests", kind="requests", limit=requests),
            Limit(name="tokens", kind="tokens", limit=tokens),
            Limit(name="slots", kind="concurrency", limit=slots),
        ]
        self.server, self.clock, self.rules = server, clock, rules
        self.gateways = [Gateway(server, clock, rules) for _ in range(GATEWAYS)]
        self.limits, self.shapes = limits, self.gateways[0].plan.shapes
        self.logs, self.entries = [Log(), Log()], list[list[int]]([[], []])
        self.lost = [0, 0, 0]
        self.count = self.at_once = 0

    async def later(self, seconds: float) -> None:
        self.clock.now += seconds
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for one in self.gateways:
            one.renew([(name, plan) for plan, name, *_ in one.running])
            one.calls.send()

    def ask(self, number: int, tokens: int) -> None:
        """For the one model; for the other if the tokens are an odd number."""
        one, now = self.gateways[number], self.clock.us
        plan = one.plans[tokens % 2]
        self.count += 1
        costs = [1, min(tokens, self.limits[1]), 1]
        answer = one.admit(plan, costs, f"g{number}.{self.count}")
        self.at_once += isinstance(answer, Verdict)
        verdict = answer if isinstance(answer, Verdict) else answer.value
        assert isinstance(verdict, Verdict)
        if verdict.violated == ADMITTED:
            places = [log.add(now, cost) for log, cost in zip(self.logs, costs, strict=False)]
            for entries, counted in zip(self.entries, verdict.counters, strict=False):
                entries.append(counted.entry)
            one.running.append((plan, verdict.name or f"g{number}.{self.count}", costs, verdict, places))
            assert min(counted.remaining for counted in verdict.counters) >= 0
            assert sum(len(other.running) for other in self.gateways) <= self.limits[2]
            return
        # Others hold it, or nobody could have it.
        index = verdict.violated
        assert not any(one.leased), "a gateway is refused what it has leased itself"
        held = self.lost[index] + sum(other.leased[index] for other in self.gateways)
        if index < 2:
            shape = self.shapes[index]
            held += self.logs[index].within(now - shape.span - shape.width - round(LIFE * 1e6), now)
        else:
            held += sum(len(other.running) for other in self.gateways)
        assert held + costs[index] > self.limits[index]

    def settle(self, number: int, which: int, share: float) -> None:
        """A request ends that used this share of its tokens; 0: it was not served."""
        one = self.gateways[number]
        if one.running:
            plan, name, costs, verdict, places = one.running.pop(which % len(one.running))
            changes = [Settlement(2, 0, 0)]
            for index in (0, 1):
                used = round(costs[1] * share) if index else costs[0] if share else 0
                self.logs[index].amounts[places[index]] = used
                if index or not share:
                    changes.append(Settlement(index, verdict.counters[index].entry, used - costs[index], costs[index]))
            one.settle(plan, name, changes, verdict)

    def kill(self, number: int) -> None:
        """A gateway is gone, and another one takes its place."""
        one = self.gateways[number]
        for index, rest in enumerate(one.leased):
            self.lost[index] += rest
        self.lost[2] += len(one.running)
        for lease in list(one._leases):  # its timers die with it
            one._leases.pop(lease).cancel()  # its timers die with it
        self.gateways[number] = Gateway(self.server, self.clock, self.rules)

    def counted(self) -> list[int]:
        """What the server counts of each limit."""
        calls = self.gateways[0].calls
        verdict = calls.ask(LOOK, self.gateways[0].plan, ()).value
        assert isinstance(verdict, Verdict)
        return [counted.entry for counted in verdict.counters]

    def refusal(self, number: int) -> Verdict:
        """The verdict about a request that is refused."""
        one = self.gateways[number]
        verdict = one.calls.ask(ADMIT, one.plan, [1, 1, 1], "refused").value
        assert isinstance(verdict, Verdict)
        assert verdict.violated != ADMITTED
        return verdict

    def held(self) -> list[int]:
        """What running requests hold of slices, as the server has it."""
        found = self.server.command("HGETALL", self.gateways[0].plan.keys[1].decode()) or {}
        return [int(amount) for field, amount in found.items() if field.startswith(b"r") and int(amount)]

    def expected(self) -> list[int]:
        found = []
        for log, entries, shape in zip(self.logs, self.entries, self.shapes, strict=False):
            over = (self.clock.us - shape.guard) // shape.width - 121
            found.append(sum(amount for amount, entry in zip(log.amounts, entries, strict=True) if entry > over))
        return [*found, sum(len(one.running) for one in self.gateways)]

    def never_above(self) -> None:
        for log, limit in zip(self.logs, self.limits, strict=False):
            assert log.most(MINUTE) <= limit


@contextmanager
def playing(server: Server, limits: tuple[int, int, int]) -> Iterator[tuple[asyncio.Runner, Play]]:
    with asyncio.Runner(loop_factory=Clock) as runner:
        clock = runner.get_loop()
        assert isinstance(clock, Clock)
        with patch.object(leases, "monotonic", clock.time):
            yield runner, Play(server, clock, limits)


moves = st.lists(
    st.tuples(
        st.sampled_from(["ask", "busy", "busy", "busy", "burst", "settle", "settle all", "wait", "kill"]),
        st.integers(0, GATEWAYS - 1),
        st.integers(1, 60),  # tokens
        st.sampled_from([0.0, 0.001, 0.06, 0.11, 0.26, 1.0, 20.0]),  # seconds later
        st.sampled_from([0.0, 0.3, 1.0]),  # of the tokens are used
    ),
    max_size=50,
)
_BUSY = ("busy", 0, 10, 0.06, 0.3)


@settings(max_examples=examples(100))
@given(st.tuples(st.integers(20, 400), st.integers(300, 9_000), st.integers(4, 80)), moves)
@example((400, 9_000, 80), [_BUSY, ("settle all", 0, 9, 0.0, 1.0), _BUSY, ("kill", 0, 1, 0.0, 0.0), _BUSY])
@example((400, 9_000, 80), [_BUSY, ("settle all", 0, 9, 0.0, 0.3), _BUSY, ("settle all", 0, 9, 0.0, 1.0)])
def test_several_gateways_never_exceed_a_limit_and_lose_nothing(
    shared_server: Server, limits: tuple[int, int, int], drawn: list[Any]
) -> None:
    async def play(one: Play) -> None:
        for action, number, tokens, seconds, share in drawn:
            if action == "kill":
                one.kill(number)
            elif action == "busy":
                for _ in range(4):
                    for _ in range(LEAST):
                        one.ask(number, tokens)
                    one.settle(number, tokens, share)
                    await one.later(0.1)
            else:
                for _ in range({"ask": 1, "burst": 30}.get(action, 0)):
                    one.ask(number, tokens)
                ending = {"settle": 1, "settle all": len(one.gateways[number].running)}
                for _ in range(ending.get(action, 0)):
                    one.settle(number, tokens, share)
            await one.later(seconds)
        one.never_above()
        await one.later(LIFE + 0.01)  # all leases have ended
        for counted, expected, lost in zip(one.counted(), one.expected(), one.lost, strict=True):
            assert expected <= counted <= expected + lost
        for number, gateway in enumerate(one.gateways):
            while gateway.running:
                one.settle(number, 0, 1.0)
        await one.later(LIFE)
        assert any(one.lost) or not one.held()
        await one.later(62)
        assert one.counted() == [0, 0, 0]

    with playing(shared_server, limits) as (runner, one):
        runner.run(play(one))


def test_a_busy_caller_far_from_its_limits_asks_nobody(shared_server: Server) -> None:
    async def play(one: Play) -> None:
        for _ in range(100):
            one.ask(0, 10)
            one.settle(0, 0, 0.5)
            await one.later(0.02)
        assert one.at_once >= 80
        await one.later(LIFE)
        assert one.counted() == one.expected() == [100, 500, 0]

    with playing(shared_server, (100_000, 100_000, 1_000)) as (runner, one):
        runner.run(play(one))


@pytest.mark.parametrize("limits", [(150, 10**6, 1_000), (10**6, 1_500, 1_000)], ids=["requests", "tokens"])
def test_one_gateway_reaches_its_limit_exactly_and_asks_in_the_second_half(
    shared_server: Server, limits: tuple[int, int, int]
) -> None:
    async def play(one: Play) -> None:
        for _ in range(200):
            one.ask(0, 10)
            one.settle(0, 0, 1.0)
            await one.later(0.02)
        assert len(one.logs[0].amounts) == 150
        assert 0 < one.at_once <= 75

    with playing(shared_server, limits) as (runner, one):
        runner.run(play(one))


def test_a_lease_counts_from_its_end_on(shared_server: Server) -> None:
    assert f"local LEASED = {round(LIFE * 1e6)} " in TEXT

    async def play(one: Play) -> None:
        await one.later(0.2)
        for _ in range(20):
            one.ask(0, 1)
        await one.later(0.29)  # the slice is nearly over
        one.ask(0, 1)
        await one.later(LIFE - 0.01)
        for _ in range(40):
            one.ask(0, 1)
        assert one.at_once == 40
        await one.later(60.62 - 0.73)  # of what was charged to that slice nothing counts
        for _ in range(400):
            one.ask(1, 1)
        one.never_above()

    with playing(shared_server, (400, 10**6, 2_000)) as (runner, one):
        runner.run(play(one))


def test_what_a_lease_has_left_is_given_back_before_it_is_missing(shared_server: Server) -> None:
    async def play(one: Play) -> None:
        for _ in range(20):
            one.ask(0, 20)
        await one.later(LIFE)
        one.ask(0, 20)
        assert one.gateways[0].leased[1] == 800
        for _ in range(3):
            one.ask(1, 1_000)
        assert len(one.gateways[1].running) == 2
        one.ask(0, 1_300)
        assert len(one.gateways[0].running) == 22

    with playing(shared_server, (10**6, 4_000, 1_000)) as (runner, one):
        runner.run(play(one))


def test_what_a_gateway_leased_for_one_model_refuses_no_request_for_another(shared_server: Server) -> None:
    async def play(one: Play) -> None:
        for _ in range(20):
            one.ask(0, 2)
        await one.later(LIFE)
        one.ask(0, 2)
        assert one.gateways[0].leased == [40, 80, 40]
        for _ in range(379):
            one.ask(0, 1)
        assert len(one.gateways[0].running) == 400
        assert not any(one.gateways[0].leased)

    with playing(shared_server, (400, 10**6, 2_000)) as (runner, one):
        runner.run(play(one))


@pytest.mark.parametrize("limits", [(400, 10**6, 2_000), (10**6, 400, 2_000)], ids=["requests", "tokens"])
def test_a_wait_for_what_others_have_leased_is_no_longer_than_their_leases(
    shared_server: Server, limits: tuple[int, int, int]
) -> None:
    """Once the leases are back, the request is admitted, or the wait is that for the window."""
    assert f"local RETURNS = {round(COMPANY * 1e6)} " in TEXT

    async def play(one: Play) -> None:
        for _ in range(20):
            one.ask(0, 1)
        await one.later(LIFE)
        one.ask(0, 1)
        for _ in range(339):
            one.ask(1, 1)
        waits = one.refusal(1)
        assert 0 < waits.wait_us <= round((LIFE + COMPANY) * 1e6) < 60_000_000 < waits.latest_us
        await one.later(0.1)
        assert one.refusal(1).wait_us == waits.wait_us - 100_000
        await one.later(waits.wait_us / 1e6 - 0.1)
        for _ in range(40):
            one.ask(1, 1)
        assert len(one.gateways[1].running) == 379
        assert one.refusal(1).wait_us > (1_000_000 - 1 if limits[1] == 400 else 59_000_000)

    with playing(shared_server, limits) as (runner, one):
        runner.run(play(one))


def test_what_a_request_used_beyond_its_reservation_is_taken_from_its_lease(shared_server: Server) -> None:
    async def play(one: Play) -> None:
        for _ in range(20):
            one.ask(0, 20)
        await one.later(LIFE)
        for share in (60.0, 0.5, 1.0):  # more than the lease has
            one.ask(0, 20)
            one.ask(0, 20)
            one.settle(0, -1, share)
        assert one.at_once == 1  # the others asked Redis, which knew of it
        await one.later(LIFE + 0.01)
        assert one.counted()[1] == one.expected()[1]

    with playing(shared_server, (10**6, 10**6, 1_000)) as (runner, one):
        runner.run(play(one))


def test_a_lease_ends_however_late_the_loop_is(shared_server: Server) -> None:
    async def play(one: Play) -> None:
        for seconds in (LIFE, 0.0):
            for _ in range(20):
                one.ask(0, 1)
            await one.later(seconds)
        before = one.at_once
        one.clock.now += LIFE
        one.ask(0, 1)
        assert one.at_once == before == 19

    with playing(shared_server, (10**6, 10**6, 1_000)) as (runner, one):
        runner.run(play(one))


def test_what_was_leased_before_a_reset_is_not_given_back_after_it(shared_server: Server) -> None:
    async def play(one: Play) -> None:
        for _ in range(20):
            one.ask(0, 1)
        await one.later(0.3)
        one.ask(0, 1)
        assert one.gateways[0].leased[0] == 40
        one.gateways[0].calls.ask(RESET, one.gateways[0].plan, ())
        for _ in range(3):
            one.ask(1, 1)
        await one.later(LIFE + 0.01)
        assert not any(one.gateways[0].leased)
        assert one.counted()[0] == 3

    with playing(shared_server, (10**6, 10**6, 1_000)) as (runner, one):
        runner.run(play(one))


async def test_slots_are_leased_under_names_of_their_own(server: Server, started: Make) -> None:
    rules = [Limit(name="slots", kind="concurrency", limit=1_000), Limit(name="tokens", kind="tokens", limit=10**6)]
    store = LeasingStore(server.settings)
    limiter = await started(rules, store)
    held: list[Reservation] = []
    while len(held) < 3:
        one = await limiter.reserve(ANN, Cost(10))
        if one.verdict.name:
            held.append(one)
        else:
            limiter.settle(one, Usage(0, 4))
    assert len({one.id for one in held}) == 3
    (key,) = server.command("KEYS", "*slots*")
    assert all(server.command("ZSCORE", key, one.id) for one in held)
    await limiter.flush()
    assert server.command("ZCARD", key) == 3
    for one in held:
        limiter.settle(one, Usage(0, 4))
    await limiter.flush()
    assert server.command("ZCARD", key) == 0
    asked = limiter.decisions.counts["tokens", "strict", "admitted"]
    assert [state.used for state in await limiter.inspect(ANN)] == [0, 4 * asked]


async def test_slots_of_a_lease_whose_answer_was_lost_are_free_again(server: Server, started: Make) -> None:
    rules = [Limit(name="slots", kind="concurrency", limit=1_000), Limit(name="requests", kind="requests", limit=10**6)]
    store = LeasingStore(server.settings)
    limiter = await started(rules, store)
    batcher = store._batchers[0]  # no public way
    held: list[int] = []

    def results(call: _Call, raw: bytes | Exception, prompt: bool) -> list[Result]:
        found = Batcher._results(batcher, call, raw, prompt)  # no public way
        if any(one.code == LEASE for one in call.asked):
            (key,) = server.command("KEYS", "*slots*")
            held.append(server.command("ZCARD", key))
            raise ConnectionResetError
        return found

    with patch.object(batcher, "_results", results):
        while not held:
            limiter.settle(await limiter.reserve(ANN), Usage(0, 4))
    assert held[0] > LEAST
    await soon(lambda: not server.command("KEYS", "*slots*"))
    assert store.up


async def test_a_gateway_that_closes_gives_its_leases_back(server: Server) -> None:
    limiter = SubjectLimiter([Limit(name="requests", kind="requests", limit=10**6)], LeasingStore(server.settings))
    await limiter.start()
    while not (await limiter.reserve(ANN)).verdict.name:
        pass
    await limiter.close()
    (key,) = server.command("KEYS", "*r60:requests*")
    assert int(server.command("HGET", key, "u")) == limiter.decisions.counts["requests", "strict", "admitted"]
