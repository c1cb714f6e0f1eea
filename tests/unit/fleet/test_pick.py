"""Which worker a request goes to: each policy, and what they agree on."""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque

import pytest

from gateway.config import Queue
from gateway.core.messages import Chat
from gateway.core.routing_facts import RoutingFacts
from gateway.fleet.candidates import Candidates
from gateway.fleet.pick import Prefix
from gateway.fleet.pick.consistent_hashing import ConsistentHashing, worker_of
from gateway.fleet.pool import Pool
from gateway.fleet.worker import Worker
from tests.support.sampled import sampled
from tests.support.steps import steps
from tests.unit.fleet.conversing import SESSION, conversation, pool, send, text, workers


def places_of(members: list[Worker], keys: list[int], lasting: bool = False) -> list[Worker | None]:
    """The places of the keys, whatever is in flight."""
    candidates = Candidates(members, ())
    candidates.count_pick(0.0)
    shares = ConsistentHashing().shares(candidates, 0.0)
    return [worker_of(key, shares, candidates.has, lasting=lasting) for key in keys]


@pytest.mark.parametrize("count", [8, 200])
async def test_a_conversation_stays_where_it_is_cached(count: int) -> None:
    one = pool(workers(count), Prefix())
    places: Counter[Worker] = Counter()
    for name in range(40):
        stays = {(await send(one, conversation(str(name), turns)))[0] for turns in range(1, 6)}
        assert len(stays) == 1
        places.update(stays)
    assert len(places) == 8 or len(places) > 30, "and conversations are spread"


async def test_the_pick_says_how_much_matched() -> None:
    one = pool(workers(4), Prefix())
    _, first = await send(one, conversation("a", 1))
    assert (first.why, first.matched) == ("home", 0)
    _, second = await send(one, conversation("a", 2))
    assert second.why == "prefix"
    assert 0.2 < second.share < 0.4, "one message of three was sent before"


@pytest.mark.long
async def test_gateways_that_share_nothing_agree() -> None:
    """Each turn may reach another gateway, and they know only what they sent themselves."""
    stayed = 0
    for part, count in itertools.product(range(3), (8, 100)):
        turn = itertools.cycle([pool(workers(count), Prefix()) for _ in range(3)])
        for name in range(30):
            ops = [conversation(f"{part} {name}", turns) for turns in range(1, 6)]
            stayed += len({(await send(next(turn), op))[0].address for op in ops}) == 1
    assert stayed >= 150, "the others of 180 began while their place had more than its part"


async def test_load_wins_when_the_favourite_is_too_busy() -> None:
    members = workers(4)
    for worker in members:
        worker.recent = 0.0  # none had more than its part
    one = pool(members, Prefix())
    favourite, routing = await send(one, conversation("a", 3))
    favourite.tokens = routing.prompt // 2
    assert (await send(one, conversation("a", 4)))[0] is favourite, "to wait costs less than to compute it anew"
    favourite.tokens = routing.prompt * 3
    other, moved = await send(one, conversation("a", 5))
    assert other is not favourite
    assert moved.why == "load"


async def test_what_is_cached_does_not_count_as_load() -> None:
    members = workers(2)
    one = pool(members, Prefix())
    _, routing = await send(one, conversation("a", 3))
    again = one.routing(conversation("a", 3), [])
    worker = await one.acquire((), 0, again)
    assert worker.tokens < routing.prompt // 4 + again.output
    one.release(worker, again)
    assert worker.tokens == 0


async def test_cold_requests_never_overload_a_place() -> None:
    """Bounded loads: everybody asks for the same, which nobody has had before."""
    members = workers(4)
    one = pool(members, Prefix(most_keys=1))  # it forgets at once
    for _ in range(80):
        await one.acquire((), 0, one.routing(conversation("same", 1), []))
    assert max(worker.tokens for worker in members) <= 1.5 * sum(worker.tokens for worker in members) / 4


async def test_a_session_wins_over_the_match() -> None:
    one = pool(workers(8), Prefix())
    header = (b"x-session-id", b"s-1")
    at = (await send(one, conversation("a", 1), header))[0]
    at.tokens = 100_000
    for name in "bcdef":
        worker, routing = await send(one, conversation(name, 2), header)
        assert worker is at
        assert routing.why == "session"
    at.ready = False
    other = (await send(one, conversation("a", 2), header))[0]
    assert other is not at
    at.ready = True
    assert (await send(one, conversation("a", 3), header))[0] is at


async def test_a_cache_key_is_a_place_that_load_overrides() -> None:
    """Prompts that share nothing go where their client's key says, as long as that worker is not busier than others."""
    one = pool(workers(8), Prefix())
    found = []
    for name in "abcde":
        op = conversation(name, 1)
        op.cache_key = "notebook"
        worker, routing = await send(one, op)
        found.append(worker)
        assert routing.why == "home"
    assert set(found) == {found[0]}
    empty = conversation("f", 1)
    empty.cache_key = ""
    assert one.routing(empty, []).first_texts == one.routing(conversation("f", 1), []).first_texts
    found[0].tokens = 100_000
    op = conversation("g", 1)
    op.cache_key = "notebook"
    worker, routing = await send(one, op)
    assert worker is not found[0]
    assert routing.why == "load"
    op.salt = "other"
    assert one.routing(op, []).first_texts != routing.first_texts


async def test_tenants_with_salts_do_not_match_each_other() -> None:
    one = pool(workers(2), Prefix())
    for salt in ("a", "b"):
        op = conversation("same", 2)
        op.salt = salt
        assert (await send(one, op))[1].matched == 0
        assert (await send(one, op))[1].matched > 0


async def test_a_worker_that_was_away_has_lost_its_cache() -> None:
    one = pool(workers(4), Prefix())
    worker, _ = await send(one, conversation("a", 1))
    worker.lives += 1
    assert (await send(one, conversation("a", 1)))[1].matched == 0
    assert (await send(one, conversation("a", 1)))[1].matched > 0


async def test_a_fleet_that_changes_moves_only_what_it_must() -> None:
    members = workers(8)
    keys = [random.Random(number).getrandbits(64) for number in range(800)]
    before, after = places_of(members, keys), places_of(members[:-1], keys)
    assert all(old is new for old, new in zip(before, after, strict=True) if old is not members[-1])
    assert all(60 < count < 150 for count in Counter(before).values())


async def test_workers_in_slow_start_take_little() -> None:
    """Four of five return together, in the middle of the first tenth of their slow start."""
    members = workers(5)
    clock = 0.5
    one = Pool(members, Prefix(), Queue(), 0.5, clock=lambda: clock, sessions=SESSION)
    for worker in members[1:]:
        worker.breaker.come_back(0.0)
    taken = Counter([(await send(one, conversation(str(number), 1)))[0] for number in range(500)])
    assert all(taken[worker] <= 25 for worker in members[1:]), "a fair share is 100"


@pytest.mark.parametrize("alike", sampled(["nothing", "system prompt", "all"], 3))
async def test_a_pick_by_prefix_among_many_takes_no_more_steps_than_among_few(alike: str) -> None:
    def opening(number: int) -> Chat:
        name = "same" if alike == "all" else str(number)
        return conversation(name, 1, 200, text("system" if alike == "system prompt" else name, 1_500))

    async def of(count: int) -> float:
        one, held = pool(workers(count), Prefix()), deque[tuple[Worker, RoutingFacts]]()

        async def pick(first: int) -> None:
            for routing in routings[first : first + 200]:
                held.append((await one.acquire((), 0, routing), routing))
                if len(held) > 50:
                    one.release(*held.popleft())

        routings = [one.routing(opening(number), []) for number in range(400)]
        await pick(0)
        return steps(lambda: next(pick(200).__await__(), None), within="gateway/fleet") / 200

    few, many, most = [await of(count) for count in (16, 200, 400)]
    assert many <= (1.1 if alike == "nothing" else 1.7) * few, "of several that have a prompt, some are too busy"
    assert most <= 1.1 * many


async def test_a_fleet_of_which_few_are_left_agrees_on_places() -> None:
    """As the workers that have an adapter, beside very many that do not."""
    members = workers(200)
    for worker in members:
        worker.ready = worker in members[20:26]
        worker.recent = 0.0
    first, second = pool(members, Prefix()), pool(members, Prefix())
    taken = [[(await send(one, conversation(str(name), 1)))[0] for name in range(40)] for one in (first, second)]
    assert taken[0] == taken[1]
    assert len(set(taken[0])) == 6


async def test_a_repeated_question_stays_where_it_is_cached_while_the_fleet_starts() -> None:
    members = workers(4)
    one = Pool(members, Prefix(), Queue(), 0.5, clock=lambda: 0.1, sessions=SESSION)
    for worker in members:
        worker.breaker.come_back(0.0)
    assert len({(await send(one, conversation("a", 1)))[0] for _ in range(4)}) == 1


async def test_gateways_agree_on_the_worker_of_a_document() -> None:
    """Its questions differ, and no gateway has seen the others' traffic."""
    members = workers(8)
    for worker in members:
        worker.recent = 0.0  # all gateways know as much of what the engines did
    gateways, taken = [pool(members, Prefix()) for _ in range(4)], set()
    for number in range(10):
        document = text(f"document {number}", 12_000)
        asked = [conversation(f"{number} {gateway}", 1, 200, document) for gateway in range(4)]
        places = {(await send(one, op))[0] for one, op in zip(gateways, asked, strict=True)}
        assert len(places) == 1
        taken |= places
        # A gateway that began later looks for the second turn there.
        later = conversation(f"{number} 0", 2, 200, document)
        assert (await send(pool(members, Prefix()), later))[0] in places
        assert (await send(gateways[1], later))[0] in places
    assert len(taken) > 2, "not all documents have the same worker"


async def test_questions_about_one_document_go_to_other_workers_while_its_own_is_too_busy() -> None:
    members = workers(8)
    one, document = pool(members, Prefix()), text("document", 12_000)
    routings = [one.routing(conversation(str(number), 1, 200, document), []) for number in range(64)]
    taken = Counter([await one.acquire((), 0, routing) for routing in routings])
    assert len(taken) > 3
    work = [worker.tokens for worker in members]
    assert max(work) < 3 * sum(work) / 8


async def test_what_engines_have_done_places_new_conversations_alike_in_every_gateway() -> None:
    """Another gateway has given much to some workers: this one has sent nothing, and leaves them alone too."""
    members = workers(8)
    for number, worker in enumerate(members):
        worker.recent = 200_000.0 if number < 2 else 50_000.0
    gateways, taken = [pool(members, Prefix()) for _ in range(2)], []
    for number in range(60):
        places = [(await send(one, conversation(str(number), 1)))[0] for one in gateways]
        assert places[0] is places[1]
        taken.append(places[0])
    assert sum(worker in members[:2] for worker in taken) <= 3, "a fair part is 15"
    members[7].recent = None  # one does not say: then each goes by what it sent itself
    assert {(await send(gateways[0], conversation(f"new {number}", 1)))[0] for number in range(60)} & set(members[:2])


def test_shares_stand_for_a_while_among_the_same_workers() -> None:
    members, hashing, now = workers(4), ConsistentHashing(), 0.0
    candidates = Candidates(members, ())

    def stand(later: float) -> list[bool]:
        """Whether they do at each of the next looks."""
        nonlocal now
        candidates.look(now)
        candidates.count_pick(now)
        shares, found = hashing.shares(candidates, now), []
        for _ in range(10):
            now += later
            candidates.count_pick(now)
            found.append(shares.stand())
        return found

    assert stand(0.0) == [True] * 7 + [False] * 3
    assert stand(0.006) == [True] * 3 + [False] * 7
    candidates.count_pick(now)
    shares = hashing.shares(candidates, now)
    members[1].draining = True
    candidates.count_pick(now)
    assert not shares.stand()


def test_places_move_as_little_as_the_shares_differ() -> None:
    """A worker that was busier for a while gives up some of its places alone, and gets just those back."""
    members = workers(8)
    keys = [random.Random(number).getrandbits(64) for number in range(4_000)]
    for worker in members:
        worker.recent = 1_000_000.0
    before = places_of(members, keys)
    members[0].recent = 1_100_000.0
    busier = places_of(members, keys)
    moved = [old for old, new in zip(before, busier, strict=True) if old is not new]
    assert set(moved) == {members[0]}
    assert 0.35 < len(moved) / before.count(members[0]) < 0.75
    assert places_of(members, keys, lasting=True) == before, "a session's place does not move"
    members[0].recent = 1_000_000.0
    assert places_of(members, keys) == before


async def test_a_short_turn_about_a_long_document_goes_where_the_turn_before_it_went() -> None:
    """All workers have the document, and no prefix ends within the turns: only the whole prompt tells them apart."""
    members = workers(8)
    one = pool(members, Prefix())
    document = text("document", 12_400)
    for number in range(24):
        first = members[number % 8]
        for worker in members:  # each conversation begins at another one
            worker.ready = worker is first
        await send(one, conversation(str(number), 1, 20, document))
        for worker in members:
            worker.ready = True
        assert [(await send(one, conversation(str(number), turns, 20, document)))[0] for turns in (2, 3)] == [first] * 2


async def test_a_conversation_that_went_on_elsewhere_is_looked_for_at_its_place() -> None:
    """This gateway sent an early turn elsewhere, because the place was busy; others have sent the later ones."""
    members = workers(8)
    home = (await send(pool(members, Prefix()), conversation("a", 1)))[0]
    one = pool(members, Prefix())
    home.tokens = 100_000
    moved = (await send(one, conversation("a", 2)))[0]
    home.tokens = 0
    assert moved is not home
    assert (await send(one, conversation("a", 3)))[0] is moved
    assert (await send(one, conversation("a", 6)))[0] is home


async def test_a_conversation_of_another_gateway_is_looked_for_where_that_would_have_sent_it() -> None:
    members = workers(8)
    for worker in members:
        worker.recent = 10_000.0
    first, second = pool(members, Prefix()), pool(members, Prefix())
    home = (await send(first, conversation("a", 1)))[0]
    home.recent = 200_000.0
    moved = (await send(pool(members, Prefix()), conversation("a", 1)))[0]
    assert moved is not home
    assert (await send(second, conversation("a", 3)))[0] is moved


async def test_what_another_gateway_had_computed_is_no_load_either() -> None:
    members = workers(8)
    one = pool(members, Prefix())
    routing = one.routing(conversation("a", 4), [])
    worker = await one.acquire((), 0, routing)
    assert (routing.why, routing.matched) == ("prefix", 0), "this gateway has sent nothing of it"
    assert worker.tokens == routing.prompt - routing.previous_tokens + routing.output
    one.release(worker, routing)
    assert worker.tokens == 0


async def test_a_place_is_left_later_where_other_gateways_would_look_for_the_conversation() -> None:
    members = workers(8)
    alone, one_of_many = pool(members, Prefix()), pool(members, Prefix())
    for number in range(300):
        for turns in (1, 2):
            await send(alone, conversation(f"{number}", turns, 200))
        await send(one_of_many, conversation(f"{number}", 4, 200))
    new = conversation("new", 1)
    home, routing = await send(pool(members, Prefix()), new)
    for gateway in (alone, one_of_many):
        gateway.policy.keep(())  # it forgets what it sent, and who had more of it
        gateway.policy.keep(members)
    home.tokens = routing.prompt // 2
    assert (await send(alone, new))[1].why == "load"
    assert (await send(one_of_many, new))[0] is home, "its next turn would be computed here anew"
    one_of_many.policy.keep(())
    one_of_many.policy.keep(members)
    home.tokens = routing.prompt * 8
    assert (await send(one_of_many, new))[1].why == "load"
