"""The memory store and the script decide alike, number for number, when they see the same clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.config import Limit
from gateway.config.money import Budget, Period, Spend
from gateway.ratelimit.kinds import BudgetRule
from gateway.ratelimit.memory import MemoryStore
from gateway.ratelimit.model import ADMITTED, Plan, Settlement, Subject, Verdict
from gateway.ratelimit.plan import Layout, Plans
from gateway.ratelimit.redis.codec import ADMIT, LOOK, RAISE, RENEW, RESET, SETTLE, Operation, Result, pack, unpack
from gateway.ratelimit.redis.store import SCRIPT
from gateway.ratelimit.rules import rule_of
from gateway.ratelimit.spent import Asked
from tests.support.redis_server import Server
from tests.support.sampled import examples

TTL = 2.0
START = 1_700_000_000 * 1_000_000
CLOCK = "local clock = call('TIME')\nlocal now = clock[1] * 1000000 + clock[2]\n"
TEXT = SCRIPT.decode()
assert CLOCK in TEXT
# The server expires keys by its own clock, which in these tests stands still: keep what the script stores for longer.
FAKED = TEXT.replace(CLOCK, "local now = tonumber(ARGV[2])\n").replace("'PEXPIRE', key, w.keep", "'PERSIST', key")
FAKED = FAKED.replace("call('PEXPIRE', KEYS[k], floor(ttl / 1000) + 1000)", "")

rules = st.lists(
    st.builds(
        lambda kind, limit, burst, per, shadow: (kind, limit, burst, per, shadow),
        st.sampled_from(["requests", "tokens", "concurrency", "cost", "day"]),
        st.integers(1, 30),
        st.one_of(st.none(), st.integers(1, 30)),
        st.sampled_from([0.1, 0.7, 1.0, 3.0]),
        st.booleans(),
    ),
    min_size=1,
    max_size=4,
)
actions = st.lists(
    st.tuples(
        st.sampled_from(["admit", "admit", "admit", "admit", "settle", "settle", "renew", "look", "reset", "raise"]),
        st.one_of(*(st.integers(0, most) for most in (300, 100_000, 2_000_000, 30_000_000))),  # microseconds later
        st.one_of(st.integers(0, 40), st.integers(0, 400)),  # tokens
        st.integers(0, 5),  # which lease
        st.booleans(),  # ends a batch
        st.integers(0, 3),  # 0: the next day begins
    ),
    max_size=60,
)


class Script:
    """The script under a clock of ours, in batches."""

    def __init__(self, server: Server) -> None:
        self._run: Any = redis.Redis(port=server.port).register_script(FAKED)
        self._items: list[Operation] = []

    def add(self, code: int, plan: Plan, what: Any, lease: str = "") -> None:
        self._items.append(Operation(code, lease, plan, what))

    def run(self, now: int) -> list[Result]:
        keys, payload = pack(self._items, 1 << 52, round(TTL * 1e6))
        self._items = []
        return unpack(self._run(keys, [payload, now]))[1]


_ADMIT = ("admit", 0, 0, 0, False, 0)
_ADMIT_ALL = ("admit", 0, 5, 0, False, 1)
_PAST = ("raise", 0, 3, 0, False, 0)
_LOOK = ("look", 0, 0, 0, False, 0)


@settings(max_examples=examples(150))
@given(rules, actions)
# A day at which somebody only looked is no day before the next one.
@example([("requests", 1, None, 0.1, False), ("day", 1, None, 0.1, False)], [_ADMIT, _PAST, _LOOK, _ADMIT])
# What requests reserved that never ended is spent an hour later.
@example([("cost", 5, None, 0.1, False)], [_ADMIT_ALL, ("admit", 3_700_000_000, 5, 0, True, 1), _LOOK])
@pytest.mark.usefixtures("server")
def test_the_same_answers(shared_server: Server, given_rules: list[Any], moves: list[Any]) -> None:
    shared_server.command("FLUSHALL")
    now = START
    script, memory = Script(shared_server), MemoryStore(clock=lambda: now * 1000)
    asyncio.run(memory.start(TTL))
    chosen = [
        budget(f"r{index}", limit, shadow, "total" if kind == "cost" else "day")
        if kind in ("cost", "day")
        else Limit(
            name=f"r{index}", kind=kind, limit=limit, per_s=per, burst=burst and min(burst, limit), shadow=shadow
        )
        for index, (kind, limit, burst, per, shadow) in enumerate(given_rules)
    ]
    plan = on_day(0, chosen)
    day = 0
    live: list[tuple[str, list[int], Verdict, Plan]] = []
    expected: list[Result] = []

    def finish() -> None:
        for got, want in zip(script.run(now), expected, strict=True):
            assert got == want
        expected.clear()

    for number, (action, later, tokens, which, ends, night) in enumerate(moves):
        if ends:
            finish()
            now += later
        if not night:
            day += 1
            plan = on_day(day, chosen)
        if action == "admit":
            costs: list[Any] = [asked(min(tokens, rule.limit), which, rule) for rule in chosen]
            lease = f"l{number}"
            script.add(ADMIT, plan, costs, lease)
            verdict = memory.admit(plan, costs, lease)
            expected.append(verdict)
            if verdict.violated == ADMITTED:
                live.append((lease, plan.charged(costs, verdict.counters), verdict, plan))
        elif action == "settle" and live:
            lease, costs, verdict, then = live.pop(which % len(live))
            changes = [
                Settlement(index, counted.entry, 0 if index in plan.slots else tokens - costs[index], costs[index])
                for index, counted in enumerate(verdict.counters)
                if counted.entry >= 0
            ]
            script.add(SETTLE, then, changes, lease)
            memory.settle(then, lease, changes)
        elif action == "renew" and live:
            lease = live[which % len(live)][0]
            script.add(RENEW, plan, plan.slots, lease)
            memory.renew([(lease, plan)])
        elif action == "look":
            script.add(LOOK, plan, ())
            expected.append(look(memory, plan))
        elif action == "raise" and plan.sums:
            least = [tokens for _ in plan.sums]
            script.add(RAISE, plan, least)
            memory.raise_budgets(plan, least)
            expected.append(1)
        elif action == "reset":
            script.add(RESET, plan, ())
            run(memory.reset(plan))
            expected.append(1)
    script.add(LOOK, plan, ())
    expected.append(look(memory, plan))
    finish()


def on_day(day: int, chosen: list[Limit]) -> Plan:
    """The plan of one day. A budget by day has a counter for each, which begins with the debt of the one before."""
    plan = Plans(chosen, Layout()).of(Subject(key="k"))
    shapes = plan.shapes
    keys = [b"%s@%d" % (key, day) if shape.owes else key for key, shape in zip(plan.keys, shapes, strict=True)]
    before = {
        now: b"%s@%d" % (key, day - 1) for now, key, shape in zip(keys, plan.keys, shapes, strict=True) if shape.owes
    }
    return Plan.of(plan.rules, keys, shapes, plan.tag, before)


def budget(name: str, amount: int, shadow: bool, per: Period) -> Limit:
    """A budget of so many nano that warns at the half and at four fifths."""
    entry = Budget(name=name, amount=1, shadow=shadow, warn_at=(0.5, 0.8), scope=("key",), per=per, reserve="expected")
    return rule_of(entry.model_copy(update={"amount": amount}), Spend(currency="EUR"))


def asked(tokens: int, share: int, rule: Limit) -> int | Asked:
    """The charge on a rule; of a budget that reserves down to a share of it."""
    if isinstance(rule, BudgetRule):
        return Asked(tokens, tokens // (1 + share))
    return tokens if rule.kind == "tokens" else 1


def look(memory: MemoryStore, plan: Plan) -> Verdict:
    return run(memory.look(plan))  # type: ignore[no-any-return]


def run(coroutine: Any) -> Any:
    """The result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waited")
