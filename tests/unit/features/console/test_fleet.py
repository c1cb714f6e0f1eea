"""The workers as the page asks for them: briefly in each poll, and a page with all that is known."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import pytest

from gateway.features.console import fleet, state
from tests.support.harness import Stack
from tests.unit.features.console.opened import ENVIRON, KEYED, SHOWN

WORKERS = [f"http://127.0.{number // 100 + 1}.{number % 100 + 1}:9" for number in range(200)]


def of(model: str, *workers: state.WorkerState) -> state.ModelState:
    return state.ModelState(model, (), "vllm", 0, workers, {}, 0, 0, None)


def a_state(*models: state.ModelState) -> state.State:
    return state.State("9", 0.0, 1.0, True, False, {}, models, (), None)


def worker(address: str, condition: str = "ready", **more: Any) -> state.WorkerState:
    return state.WorkerState(address, condition, 0, None, **more)


FOUND = a_state(
    of("big", worker("http://a:1"), worker("http://b:1", "down", reason="refused"), worker("http://c:1", "draining")),
    of("small", worker("http://d:1", serves=("Other",)), worker("http://e:1", "stalled", served_as="own")),
)


@pytest.mark.parametrize(
    ("match", "skip", "limit", "found", "total"),
    [
        ("", 0, 100, "becad", 5),
        ("", 1, 2, "ec", 5),
        ("", 4, 100, "d", 5),
        ("", 5, 100, "", 5),
        ("SMALL", 0, 100, "ed", 2),
        ("refus", 0, 100, "b", 1),
        ("other", 0, 100, "d", 1),
        ("own", 0, 1, "b", 2),
        ("http://a", 0, 100, "a", 1),
        ("nothing", 0, 100, "", 0),
    ],
)
async def test_a_page_has_those_that_match_the_worst_first(
    match: str, skip: int, limit: int, found: str, total: int
) -> None:
    shown = await fleet.page_of(FOUND, match, skip, limit)
    assert "".join(one.worker.address[7] for one in shown.workers) == found
    assert shown.total == total


async def test_other_work_goes_on_while_many_are_looked_at() -> None:
    many = a_state(of("m", *(worker(f"http://w{number}") for number in range(5_000))))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    going = asyncio.create_task(others())
    assert (await fleet.page_of(many, "w4999", 0, 100)).total == 1
    going.cancel()
    assert turns >= 9


def test_a_poll_has_little_of_each_worker_and_a_page_has_all() -> None:
    config = {**KEYED, "models": {"big": {"backend": "vllm", "workers": WORKERS}}}
    with Stack((), config, environ=ENVIRON) as stack, httpx.Client(base_url=stack.admin_url, headers=SHOWN) as client:
        polled = client.get("/console/brief.json")
        (model,) = polled.json()["models"]
        assert [one[0] for one in model["workers"]] == WORKERS
        assert {len(one) for one in model["workers"]} == {3}
        assert len(polled.content) < len(client.get("/console/status.json").content) / 4
        page = client.get("/console/workers.json").json()
        assert (len(page["workers"]), page["total"]) == (100, 200)
        last = client.get("/console/workers.json", params={"skip": 199, "limit": 500}).json()
        assert [one["model"] for one in last["workers"]] == ["big"]
        assert last["workers"][0]["worker"].keys() == {*state.WorkerState.__struct_fields__}
        for query in ("limit=0", "limit=501", "limit=x", "skip=-1", "skip=99999999", "limit=%C2%B2"):
            assert client.get(f"/console/workers.json?{query}").status_code == 400, query
        assert client.get("/console/requests.json?limit=501").status_code == 400
        assert httpx.get(f"{stack.admin_url}/console/workers.json").status_code == 401
        assert httpx.get(f"{stack.admin_url}/console/brief.json").status_code == 401


def test_a_brief_state_differs_in_its_workers_alone() -> None:
    whole, short = (msgspec.json.decode(msgspec.json.encode(one)) for one in (FOUND, fleet.brief(FOUND)))
    assert [model.pop("workers") for model in short["models"]] == [
        [["http://a:1", "ready", 0], ["http://b:1", "down", 0], ["http://c:1", "draining", 0]],
        [["http://d:1", "ready", 0], ["http://e:1", "stalled", 0]],
    ]
    for model in whole["models"]:
        del model["workers"]
    assert short == whole
