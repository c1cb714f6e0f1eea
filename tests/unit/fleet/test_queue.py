"""Who is next, and who has to go: the queue by itself, with a clock that the test moves."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet import queue as module
from gateway.fleet.queue import ANY, MOST_COST, Kind, Queue, Waiter
from tests.support.sampled import sampled


def filled(*waiters: Waiter) -> Queue[Waiter]:
    queue: Queue[Waiter] = Queue()
    for waiter in waiters:
        queue.add(waiter)
    return queue


def one(tenant: str = "a", priority: int = 0, tokens: int = 500, size: int = 100, lacks: str = "") -> Waiter:
    """lacks: the names of the workers that do not suit it, a letter each."""
    return Waiter(tenant, priority, tokens, size, frozenset(lacks))


def taken(queue: Queue[Waiter], most: int = 10**6, blocked: Collection[Kind] = ()) -> list[Waiter]:
    found: list[Waiter] = []
    while len(found) < most and (waiter := queue.first(set(blocked))) is not None:
        queue.take(waiter)
        found.append(waiter)
    return found


# -- who is next ----------------------------------------------------------------------------------------------------


def test_of_one_tenant_the_first_is_first() -> None:
    waiters = [one(tokens=size) for size in (10, 90000, 1, 500)]
    assert taken(filled(*waiters)) == waiters


def test_a_higher_priority_goes_first_whoever_came_first() -> None:
    queue = filled(*(one("flood", 0) for _ in range(50)))
    urgent, idle = one("b", 7), one("c", -3)
    queue.add(idle)
    queue.add(urgent)
    order = taken(queue)
    assert (order[0], order[-1]) == (urgent, idle)


def test_tenants_take_turns_by_tokens() -> None:
    """In every stretch of the order each tenant got the same number of tokens, but for a turn and a request."""
    small = [one("small", tokens=100) for _ in range(1000)]
    large = [one("large", tokens=2500) for _ in range(40)]
    got: Counter[str] = Counter()
    for waiter in taken(filled(*large, *small), 900):
        got[waiter.tenant] += waiter.tokens
        assert abs(got["small"] - got["large"]) <= 2500 + 100
    assert got["large"] > 80_000


def test_who_had_nothing_waiting_goes_before_the_queue_of_another() -> None:
    queue = filled(*(one("flood") for _ in range(1000)))
    taken(queue, 10)
    newcomer = one("b")
    queue.add(newcomer)
    assert queue.first() is newcomer


def test_coming_back_at_once_is_no_way_to_be_first_each_time() -> None:
    queue = filled(*(one("flood", tokens=1024) for _ in range(200)))
    got: Counter[str] = Counter()
    queue.add(one("eager", tokens=1024))
    for _ in range(100):
        (waiter,) = taken(queue, 1)
        got[waiter.tenant] += 1
        if waiter.tenant == "eager":
            queue.add(one("eager", tokens=1024))
    assert abs(got["eager"] - got["flood"]) <= 2


KINDS = ("", "x", "y", "xy")


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.integers(-1, 1), st.integers(1, 10**6), st.sampled_from(KINDS), st.booleans()
        )
    )
)
def test_everybody_leaves_once_and_the_sums_are_true(found: list[tuple[str, int, int, str, bool]]) -> None:
    waiters = [one(tenant, priority, tokens, tokens % 999, lacks) for tenant, priority, tokens, lacks, _ in found]
    queue = filled(*waiters)
    for waiter, (*_, leaves) in zip(waiters, found, strict=True):
        if leaves:
            queue.remove(waiter)
    staying = {waiter for waiter, (*_, leaves) in zip(waiters, found, strict=True) if not leaves}
    assert set(queue) == staying
    while staying:
        assert queue.count == len(staying)
        assert queue.size == sum(waiter.size for waiter in staying)
        assert queue.kinds == Counter(waiter.unsuitable for waiter in staying)
        for kind in map(frozenset, KINDS):
            assert queue.tokens(kind) == sum(waiter.tokens for waiter in staying if waiter.unsuitable == kind)
        (waiter,) = taken(queue, 1)
        assert waiter.priority == max(other.priority for other in staying)
        staying.remove(waiter)
    assert (queue.count, queue.size, queue.kinds, queue.tokens(ANY), queue.first()) == (0, 0, {}, 0, None)


def test_retries_go_before_turns_but_behind_a_higher_priority() -> None:
    without = [frozenset({name}) for name in ("w1", "w2")]
    a, b = (Waiter("a", 0, 10, 0, without[0], is_retry=True) for _ in range(2))
    c = Waiter("b", 1, 10, 0, without[1], is_retry=True)
    turn, urgent = one("z", 0), one("z", 1)
    queue = filled(turn, a, b, c, urgent)
    assert taken(queue, 1) == [c]
    assert queue.first({ANY}) is a
    assert queue.first({ANY, without[0]}) is None
    assert queue.first(set(without)) is urgent
    assert taken(queue) == [urgent, a, b, turn]


# -- requests that not every worker suits ----------------------------------------------------------------------------


def test_a_kind_without_a_free_worker_blocks_nobody_and_keeps_its_place() -> None:
    blocked = [one("a", 5, 1024, lacks="x") for _ in range(3)]
    plain = [one("a"), one("b"), one("a", -1)]
    queue = filled(*blocked, *plain)
    assert taken(queue, blocked=[frozenset("x")]) == [plain[0], plain[1], plain[2]]
    assert queue.first({frozenset("x")}) is None
    late = one("b", 5)
    queue.add(late)
    assert taken(queue) == [blocked[0], late, blocked[1], blocked[2]]


def test_of_one_tenant_the_first_that_a_worker_suits_is_first() -> None:
    waiters = [one(tokens=1, lacks=lacks) for lacks in ("x", "", "y", "x", "")]
    queue = filled(*waiters)
    assert taken(queue, 2, [frozenset("x")]) == [waiters[1], waiters[2]]
    assert taken(queue) == [waiters[0], waiters[3], waiters[4]]


def test_requests_of_many_kinds_are_no_way_to_have_more_turns() -> None:
    spread = [one("spread", tokens=300, lacks="xyzuvw"[number % 7 :]) for number in range(700)]
    plain = [one("plain", tokens=700) for _ in range(300)]
    got: Counter[str] = Counter()
    for waiter in taken(filled(*spread, *plain), 800):
        got[waiter.tenant] += waiter.tokens
        assert abs(got["spread"] - got["plain"]) <= 700 + 300
    assert got["plain"] > 150_000


class Turns:
    """Start-time fair queueing as the paper has it, for one priority. It takes as many steps as tenants wait."""

    def __init__(self) -> None:
        self.waiters: dict[str, list[Waiter]] = {}
        self.turns: dict[str, tuple[int, int]] = {}
        self.clock = self.count = 0

    def turn(self, tokens: int) -> tuple[int, int]:
        self.count += 1
        return self.clock + tokens, self.count

    def add(self, waiter: Waiter) -> None:
        waiting = self.waiters.setdefault(waiter.tenant, [])
        if not waiting and self.turns.get(waiter.tenant, (-1, 0))[0] <= self.clock:
            self.turns[waiter.tenant] = self.turn(0)
        waiting.append(waiter)

    def take(self, blocked: Collection[Kind]) -> Waiter | None:
        def open_of(tenant: str) -> list[Waiter]:
            return [waiter for waiter in self.waiters[tenant] if waiter.unsuitable not in blocked]

        tenants = [tenant for tenant in self.waiters if open_of(tenant)]
        if not tenants:
            return None
        tenant = min(tenants, key=lambda one: self.turns[one])
        waiter = open_of(tenant)[0]
        self.waiters[tenant].remove(waiter)
        self.clock = max(self.clock, self.turns[tenant][0])
        self.turns[tenant] = self.turn(min(waiter.tokens, MOST_COST))
        return waiter


@pytest.mark.parametrize("kinds", [1, 4])
@pytest.mark.parametrize("seed", range(20))
def test_the_order_is_that_of_start_time_fair_queueing(seed: int, kinds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FEW", 2)  # tenants that wait no more are looked for often
    draw = random.Random(seed)
    queue, turns = Queue[Waiter](), Turns()
    for _ in range(2000):
        if draw.random() < 0.5:
            tokens = draw.choice((50, 700, 9000, 90_000))
            waiter = one(draw.choice("abcdefgh"), 0, tokens, lacks=draw.choice(KINDS[:kinds]))
            queue.add(waiter)
            turns.add(waiter)
            continue
        blocked = [frozenset(lacks) for lacks in KINDS[:kinds] if draw.random() < 0.4]
        assert taken(queue, 1, blocked) == [waiter for waiter in [turns.take(blocked)] if waiter is not None]
        if not queue.count:
            turns = Turns()  # nothing waits: the queue forgets who had its turn


# -- the wait of one tenant beside the flood of another --------------------------------------------------------------


def waits(flood: float, seed: int = 1, served: int = 12000) -> list[float]:
    """Seconds that each request of a quiet team waited, beside a team that sends `flood` times its share.

    One worker takes a request each 10 ms. Its share is half of that; the quiet team sends a quarter, at random."""
    draws = {"quiet": random.Random(seed), "loud": random.Random(-seed)}
    queue: Queue[Waiter] = Queue()
    since: dict[Waiter, float] = {}
    found: list[float] = []
    due = {"quiet": draws["quiet"].expovariate(25.0), "loud": 0.0}
    for turn in range(served):
        now = turn * 0.01
        for team, rate in (("quiet", 25.0), ("loud", 50.0 * flood)):
            while due[team] <= now:
                waiter = one(team, tokens=draws[team].randint(200, 800))
                if queue.count >= 1000:
                    going = queue.outranked(waiter, queue.count + 1 - 1000, 0)
                    for other in going:
                        queue.remove(other)
                        assert other.tenant == "loud"
                    if not going:
                        assert team == "loud"
                        due[team] += 1 / rate
                        continue
                since[waiter] = due[team]
                queue.add(waiter)
                due[team] += draws[team].expovariate(rate) if team == "quiet" else 1 / rate
        for waiter in taken(queue, 1):
            if waiter.tenant == "quiet":
                found.append(now - since[waiter])
    return found


def p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_a_flood_of_twenty_times_a_share_costs_another_team_nothing(seed: int) -> None:
    """Beside a team that takes just its share; its part of the queue is full then."""
    before, beside = waits(1, seed), waits(20, seed)
    assert len(before) > 1000
    assert p99(beside) <= p99(before) * 1.1


# -- who has to go --------------------------------------------------------------------------------------------------


def test_the_newest_of_the_largest_tenant_makes_room() -> None:
    flood = [one("flood") for _ in range(9)]
    queue = filled(one("b"), *flood)
    assert queue.outranked(one("b"), 1, 0) == [flood[-1]]
    assert queue.outranked(one("c"), 1, 0) == [flood[-1]]
    assert queue.outranked(one("flood"), 1, 0) == []


def test_who_has_as_much_as_the_largest_makes_nobody_go() -> None:
    queue = filled(one("a"), one("b"))
    assert queue.outranked(one("a"), 1, 0) == queue.outranked(one("c"), 1, 0) == []


def test_a_lower_priority_makes_room_and_a_higher_one_does_not() -> None:
    low = [one("a", -1), one("b", -1)]
    queue = filled(*low, *(one("c", 5) for _ in range(8)))
    assert queue.outranked(one("c", 5), 1, 0)[0] in low
    assert queue.outranked(one("d", -2), 1, 0) == []
    queue = filled(*(one("c", 5) for _ in range(8)))
    assert queue.outranked(one("d", 0), 1, 0) == []


def test_bytes_are_freed_by_who_holds_most_of_them_or_not_at_all() -> None:
    heavy = [one("heavy", size=1000) for _ in range(4)]
    queue = filled(*heavy, *(one("many", size=10) for _ in range(50)))
    assert queue.outranked(one("b", size=1500), 0, 1500) == [heavy[3], heavy[2]]
    # With 2,500 bytes it would then hold more than the one that made room.
    assert queue.outranked(one("b", size=2500), 0, 2500) == []
    assert queue.count == 54


def test_one_large_body_makes_room_for_those_of_others() -> None:
    """The room is 1,000 bytes. A tenant gives way if it has more than an equal part, to one that then has not."""
    large = one("greedy", size=1000)
    queue = filled(large)
    assert queue.outranked(one("b", size=400), 0, 400) == [large]
    assert queue.outranked(one("b", size=600), 0, 600) == []
    assert queue.outranked(one("greedy", size=400), 0, 400) == []
    large = one("greedy", size=600)
    queue = filled(large, one("b", size=300))
    assert queue.outranked(one("c", size=300), 0, 200) == [large], "a third is its part"
    assert queue.outranked(one("b", size=250), 0, 150) == [], "half is, and it has 550"
    queue = filled(one("greedy", size=500), one("b", size=300))
    assert queue.outranked(one("b", size=250), 0, 50) == [], "neither has more"


def test_what_is_ahead_of_another_kind_does_not_count() -> None:
    queue = filled(*(one("a", tokens=1000, lacks="x") for _ in range(10)), one("a", tokens=300), one("b", 2, tokens=40))
    assert queue.ahead("a", 0, 500) == 300 + 40
    assert queue.ahead("a", 0, 500, frozenset("x")) == 10_000
    assert queue.ahead("b", 0, 500, frozenset("x")) == 500
    assert queue.ahead("b", 0, 500, frozenset("y")) == 0


def test_what_is_ahead() -> None:
    queue = filled(*(one("flood", tokens=1000) for _ in range(100)), one("b", tokens=300), one("c", 3, tokens=70))
    assert queue.ahead("flood", 0, 1000) == 100_000 + 300 + 70
    assert queue.ahead("b", 0, 500) == 300 + 800 + 70
    assert queue.ahead("new", 0, 500) == 500 + 300 + 70
    assert queue.ahead("new", 3, 500) == 70
    assert queue.ahead("new", 9, 500) == 0


class Looked(Waiter):
    """Counts how often its place is asked for."""

    looks = 0

    @property
    def number(self) -> int:
        Looked.looks += 1
        return self.arrived

    @number.setter
    def number(self, number: int) -> None:
        self.arrived = number


def test_a_tenant_may_have_any_number_of_requests() -> None:
    """Finding the next one and the last one looks at the ends of its lines, however long they are."""
    queue = filled(*(Looked("a", 0, 1, 1, frozenset(KINDS[number % 4])) for number in range(4000)))
    Looked.looks = 0
    for turn in range(1000):
        queue.take(queue.first() or one())
        (last,) = queue.outranked(one("b"), 1, 0)
        assert isinstance(last, Looked)
        assert last.arrived == 4000 - turn
        queue.remove(last)
    assert queue.count == 2000
    assert Looked.looks < 1000 * 16


@pytest.mark.parametrize("seed", sampled(range(20), 4))
def test_who_changes_kind_keeps_place_and_turn(seed: int) -> None:
    """As if all had come with the kinds that they have now."""
    draw = random.Random(seed)
    queue, other = Queue[Waiter](), Queue[Waiter]()
    twins: dict[Waiter, Waiter] = {}
    for _ in range(1500):
        if draw.random() < 0.55:
            lacks = draw.choice(KINDS)
            tenant, tokens, again = draw.choice("abcd"), draw.choice((50, 700, 9000)), draw.random() < 0.1
            twin = Waiter(tenant, draw.choice((0, 3)), tokens, 10, frozenset(lacks), again)
            waiter = Waiter(tenant, twin.priority, tokens, 10, frozenset(lacks), again)
            twins[waiter] = twin
            queue.add(waiter)
            other.add(twin)
            continue
        if draw.random() < 0.3:
            queue.regroup(lambda waiter: frozenset(draw.choice(KINDS)))
            queue.regroup(lambda waiter: twins[waiter].unsuitable)
            assert queue.kinds == other.kinds
        blocked = [frozenset(lacks) for lacks in KINDS if draw.random() < 0.4]
        ours, theirs = taken(queue, 1, blocked), taken(other, 1, blocked)
        assert [twins[waiter] for waiter in ours] == theirs
    assert {twins[waiter] for waiter in queue} == set(other)
    assert (queue.count, queue.size) == (other.count, other.size)
