"""Which batches run, and which of their lines, while others cannot."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.features.batches import run, service
from gateway.features.batches.slots import Slots
from gateway.features.batches.state import MOST_OPEN, tenant_of
from gateway.fleet.idle import Idle
from tests.support.harness import Stack, until
from tests.support.redis_server import Server
from tests.unit.features.batches.conftest import ALICE, BOB, batching, sections
from tests.unit.features.batches.test_openai_batches import CHAT, begin, chat, ended, lines

NOBODY = "http://127.0.0.1:9"
MOST = service.MOST_RUNS


def config(server: Server, folder: Path, **options: Any) -> dict[str, Any]:
    """A gateway with a model `lost`, whose worker is not there."""
    server.command("FLUSHALL")
    return {**sections(server, folder, max_batches=100, **options), "models": lost_at(NOBODY)}


def lost_at(url: str) -> dict[str, Any]:
    return {"lost": {"backend": "vllm", "upstream_model": "sim", "workers": [url]}}


def waiting(stack: Stack, count: int, size: int = 1, key: str = ALICE) -> list[Any]:
    """So many batches for a model without a worker, which all run."""
    lost = [begin(stack, lines({f"c{n}": chat("x", model="lost") for n in range(size)}), key=key) for _ in range(count)]
    until(lambda: sum(bool(one.calls) for one in runs(stack)) == min(count, MOST), 60)
    return lost


def runs(stack: Stack) -> Sequence[run.BatchRun]:
    return [one for one, _ in list(batching(stack).runs.values())]


@pytest.mark.parametrize("stalled_s", [0.2, 3600], ids=["stalled", "most"])
def test_batches_of_one_tenant_keep_none_of_others_from_beginning(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stalled_s: float
) -> None:
    monkeypatch.setattr(run, "_STALLED_S", stalled_s)
    with Stack(({},), config(server, tmp_path)) as stack:
        waiting(stack, MOST + 2)
        done = ended(stack, begin(stack, lines({"a": chat("a")}), key=BOB), BOB, 60)
        assert done.status == "completed"


@pytest.mark.long
def test_batches_that_cannot_run_keep_none_of_their_tenant_from_beginning(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_STALLED_S", 0.2)
    with Stack(({},), config(server, tmp_path)) as stack:
        lost = waiting(stack, MOST + 2)
        assert ended(stack, begin(stack, lines({"a": chat("a")})), seconds=60).status == "completed"
        until(lambda: len(runs(stack)) == MOST, 60)  # a place that nobody needs is theirs again
        stack.run(stack.gateway.reload(stack.config({"models": lost_at(stack.sim.url)})))
        assert {ended(stack, one, seconds=60).status for one in lost} == {"completed"}


@pytest.mark.long
def test_tenants_come_to_run_as_many(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_STALLED_S", 3600)
    with Stack(({},), config(server, tmp_path)) as stack:
        waiting(stack, MOST + 2)
        for _ in range(MOST):
            begin(stack, lines({"a": chat("x", model="lost")}), key=BOB)
        until(lambda: [*Counter(one.spec.owner for one in runs(stack)).values()] == [MOST // 2] * 2, 60)


def test_lines_that_wait_for_a_worker_hold_no_place(server: Server, tmp_path: Path) -> None:
    with Stack(({},), config(server, tmp_path, max_in_flight=2)) as stack:
        waiting(stack, 1, 40)
        made = begin(stack, lines({f"c{n}": chat("a") for n in range(9)}), key=BOB)
        assert ended(stack, made, BOB, 60).request_counts.completed == 9


def test_lines_have_their_bound_at_workers(server: Server, tmp_path: Path) -> None:
    with Stack(({},), config(server, tmp_path, max_in_flight=2)) as stack:
        stack.sim.fault("stall", path=CHAT)
        for key in (ALICE, BOB):
            begin(stack, lines({f"c{n}": chat("a") for n in range(9)}), key=key)
        until(lambda: stack.sim.ledger.running == 2, 60)
        until(lambda: sum(len(one.calls) for one in runs(stack)) == 18, 60)
        assert stack.sim.ledger.running == 2


@pytest.mark.long
def test_batches_behind_a_thousand_that_nobody_can_take_begin(server: Server, tmp_path: Path) -> None:
    with Stack(({},), config(server, tmp_path)) as stack:
        others = [word for n in range(MOST_OPEN + 1) for word in ("0", f"batch_{n} {tenant_of('other')}")]
        server.command("ZADD", "{dragoman-batches}:open", *others)
        assert ended(stack, begin(stack, lines({"a": chat("a")})), seconds=60).status == "completed"


def test_a_batch_that_another_gateway_runs_is_not_asked_for(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stack(({},), config(server, tmp_path)) as stack:
        taken: list[str] = []
        store = batching(stack).store
        take = store.take

        async def seen(id_: str, lease_s: float) -> Any:
            taken.append(id_)
            return await take(id_, lease_s)

        monkeypatch.setattr(store, "take", seen)
        server.command("SET", "{dragoman-batches}:holder:batch_0", "other")
        server.command("ZADD", "{dragoman-batches}:open", "0", f"batch_0 {tenant_of('other')}")
        assert ended(stack, begin(stack, lines({"a": chat("a")})), seconds=60).status == "completed"
        assert "batch_0" not in taken


def test_a_place_goes_to_the_tenant_with_the_fewest() -> None:
    """Whatever comes and goes: no more than so many are held, and none is lost."""

    async def drawn(seed: int) -> None:
        chance = random.Random(seed)
        most = chance.randrange(1, 6)
        slots, held = Slots(most), Counter[str]()
        waiting: dict[asyncio.Task[None], str] = {}

        async def settle() -> None:
            for _ in range(3):
                await asyncio.sleep(0)
            for task in [one for one in waiting if one.done()]:
                tenant = waiting.pop(task)
                held[tenant] += not task.cancelled()
            assert held.total() == min(most, held.total() + len(waiting))

        for _ in range(200):
            what, tenant = chance.randrange(4), chance.choice("abc")
            if what < 2:
                waiting[asyncio.create_task(slots.take(tenant))] = tenant
            elif what == 2 and held[tenant]:
                held[tenant] -= 1
                before, who = held.copy(), {*waiting.values()}
                slots.give(tenant)
                if chance.random() < 0.3 and waiting:  # at the moment at which it may have become its own
                    chance.choice(list(waiting)).cancel()
                    await settle()
                    continue
                await settle()
                for winner in held - before:
                    assert before[winner] == min(before[one] for one in who)
            elif waiting:
                chance.choice(list(waiting)).cancel()
            await settle()
        for task in waiting:
            task.cancel()
        await settle()
        for tenant in list(held.elements()):
            slots.give(tenant)
        assert (slots._free, slots._waiting, +slots._held) == (most, {}, Counter())  # nothing is left

    for seed in range(30):
        asyncio.run(drawn(seed))


def fleets(stack: Stack, reason: str, **workers: list[str]) -> dict[str, Any]:
    """Models on these workers, of which the first has the others as fallbacks."""
    first, *others = workers
    made = {name: {"backend": "vllm", "upstream_model": "sim", "workers": urls} for name, urls in workers.items()}
    made[first] |= {"fallback": others, "fallback_on": [reason]}
    return {"models": made}


def test_a_line_whose_model_has_no_worker_is_its_fallbacks(server: Server, tmp_path: Path) -> None:
    with Stack(({},), config(server, tmp_path)) as stack:
        stack.run(stack.gateway.reload(stack.config(fleets(stack, "unavailable", lost=[NOBODY], m=[stack.sim.url]))))
        made = begin(stack, lines({f"c{n}": chat("a", model="lost") for n in range(3)}))
        done = ended(stack, made, seconds=60)
        assert (done.status, done.request_counts.completed) == ("completed", 3)
        records = [one for one in stack.records() if "batch" in one]
        assert {(one["model"], one["asked"], one["routed"]) for one in records} == {("m", "lost", "unavailable")}


def test_a_line_that_waits_goes_on_once_its_model_has_lost_its_workers(server: Server, tmp_path: Path) -> None:
    with Stack(({}, {}), config(server, tmp_path)) as stack:
        workers = {"m": [stack.sim.url], "other": [stack.sims[1].url]}
        stack.run(stack.gateway.reload(stack.config(fleets(stack, "unavailable", **workers))))
        pool = stack.gateway.deployment.fleets.models["m"].pool
        idle = Idle.of(pool, stack.gateway.deployment.runtime.clock)
        idle._rests_until = math.inf  # as if others needed all slots
        made = begin(stack, lines({"a": chat("a")}))
        until(lambda: len(idle._waiting) == 1)  # the line waits for a place
        stack.loop.call_soon_threadsafe(pool.workers[0].breaker.hold)
        assert ended(stack, made, seconds=60).request_counts.completed == 1


@pytest.mark.parametrize("reason", ["context_length", "unavailable"])
def test_a_line_that_no_model_can_answer_waits(server: Server, tmp_path: Path, reason: str) -> None:
    """Neither a fallback for another reason nor one without a worker is a reason to try again and again."""
    with Stack(({},), config(server, tmp_path)) as stack:
        urls = [NOBODY] if reason == "unavailable" else [stack.sim.url]
        stack.run(stack.gateway.reload(stack.config(fleets(stack, reason, lost=[NOBODY], other=urls))))
        begin(stack, lines({"a": chat("a", model="lost")}))
        idle = Idle.of(stack.gateway.deployment.fleets.models["lost"].pool, stack.gateway.deployment.runtime.clock)
        until(lambda: len(idle._waiting) == 1)  # the line waits for a place
        before = [*idle._waiting]  # the requests that wait, in order
        stack.run(_look(idle))
        assert [*idle._waiting] == before  # nobody has left


async def _look(idle: Idle) -> None:
    """Looks whether requests that wait have a place, or leave."""
    idle.serve()
