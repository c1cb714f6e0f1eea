"""Long steps of large requests: others are served meanwhile, and what nobody waits for is dropped."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from gateway import offload as threads
from gateway.backends.vllm import Vllm
from gateway.core.errors import GatewayError, Kind
from gateway.core.estimate import Estimator
from gateway.dialects.anthropic import Anthropic
from gateway.dialects.openai import OpenAI
from gateway.fleet.pool import Pool
from gateway.kernel import asking
from gateway.offload import Share, offload, offload_in_turn
from gateway.wire.openai.streams.passthrough import Passthrough
from tests.support.harness import Stack, until
from tests.unit.server.raw import Raw, chat, post, scripted


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def test_what_a_step_raises_is_raised_and_the_next_one_is_none_the_worse() -> None:
    def step() -> None:
        raise LookupError("this one")

    with pytest.raises(LookupError, match="this one"):
        await offload(step)
    assert await offload(int, "7") == 7


@pytest.fixture
def busy() -> Iterator[threading.Event]:
    """The thread is busy until the event is set."""
    held, go = threading.Event(), threading.Event()

    def step() -> None:
        held.set()
        assert go.wait(10)

    with ThreadPoolExecutor(1) as loops:
        task = loops.submit(asyncio.run, offload(step))
        assert held.wait(10)
        yield go
        go.set()
        task.result(10)


async def test_a_queued_step_whose_client_left_never_begins(busy: threading.Event) -> None:
    begun: list[str] = []
    steps = {name: asyncio.ensure_future(offload(begun.append, name)) for name in ("left", "stayed")}
    await asyncio.sleep(0)
    steps["left"].cancel()
    await asyncio.wait([steps["left"]])
    busy.set()
    await steps["stayed"]
    assert begun == ["stayed"]


async def test_a_running_step_whose_client_left_holds_up_nobody_but_the_steps_behind_it(busy: threading.Event) -> None:
    begun = threading.Event()
    left = asyncio.ensure_future(offload(begun.set))
    busy.set()
    await asyncio.to_thread(begun.wait, 30)
    left.cancel()
    assert await asyncio.wait_for(offload(threading.get_ident), 30), "the thread is free again"


async def test_steps_run_one_at_a_time_in_the_order_in_which_they_came(busy: threading.Event) -> None:
    done: list[int] = []
    tasks = [asyncio.ensure_future(offload(done.append, number, share=Share(number % 3, 0))) for number in range(9)]
    await asyncio.sleep(0)
    busy.set()
    await asyncio.gather(*tasks)
    assert done == [*range(9)]


async def test_an_owner_waits_for_one_large_reply_of_another(busy: threading.Event) -> None:
    done: list[object] = []
    tasks = [asyncio.ensure_future(offload_in_turn("greedy", done.append, number)) for number in range(9)]
    await asyncio.sleep(0)
    tasks.append(asyncio.ensure_future(offload_in_turn("other", done.append, "other")))
    await asyncio.sleep(0)
    busy.set()
    await asyncio.gather(*tasks)
    assert done.index("other") <= 1


async def test_a_request_that_takes_more_than_its_share_is_refused() -> None:
    share = Share("greedy", 0)
    share.left_s = 0.02
    await offload(spin, 0.0, share=share)
    with pytest.raises(GatewayError, match="takes too long") as caught:
        await offload(spin, 0.1, share=share)
    assert (caught.value.kind, caught.value.code) == (Kind.TOO_LARGE, "body_too_costly")
    with pytest.raises(GatewayError):
        await offload(int, share=share)
    assert await offload(threading.get_ident, share=Share("greedy", 0))


async def test_time_in_which_a_step_does_not_run_is_not_its_own() -> None:
    share, waited = Share("greedy", 0), threading.Event()
    before = share.left_s

    def step() -> None:
        threading.Timer(0.3, waited.set).start()
        waited.wait(30)

    await offload(step, share=share)
    assert before - share.left_s < 0.15


# -- through the whole gateway --------------------------------------------------------------------------------------

URL = "/v1/chat/completions"
LARGE = chat("a" * (1 << 20))


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(({"max_model_len": 1 << 30},)) as running:
        yield running


class Held:
    """Steps of large requests wait here until they are let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go = threading.Event()

    def around(self, step: Callable[..., Any], size: Callable[..., int]) -> Callable[..., Any]:
        def held(*given: Any) -> Any:
            if size(*given) >= 1 << 20:
                self.entered.set()
                assert self.go.wait(10)
            return step(*given)

        return held


@pytest.fixture(params=["read", "written"])
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held()
    if request.param == "read":
        monkeypatch.setattr(OpenAI, "read", held.around(OpenAI.read, lambda _, asked: len(asked.body)))
    else:
        monkeypatch.setattr(Vllm, "write", held.around(Vllm.write, lambda _, op, __: len(bytes(op.raw["messages"]))))
    yield held
    held.go.set()


def test_others_are_served_meanwhile(stack: Stack, held: Held) -> None:
    statuses: list[int] = []
    asking = threading.Thread(target=lambda: statuses.append(httpx.post(stack.url + URL, json=LARGE).status_code))
    asking.start()
    assert held.entered.wait(30)
    assert httpx.post(stack.url + URL, json=chat()).status_code == 200
    held.go.set()
    asking.join()
    assert statuses == [200]


def test_others_are_served_while_a_large_reply_is_read(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held()
    whole = held.around(Passthrough.whole, lambda _, response, __: 4 * len(response.body))
    monkeypatch.setattr(Passthrough, "whole", whole)
    large = chat(scripted(text="x" * (1 << 18)))
    replies: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: replies.append(httpx.post(stack.url + URL, json=large)))
    asking.start()
    try:
        assert held.entered.wait(30)
        assert httpx.post(stack.url + URL, json=chat()).status_code == 200
    finally:
        held.go.set()
        asking.join()
    assert len(replies[0].json()["choices"][0]["message"]["content"]) == 1 << 18
    assert stack.records()[-1]["usage"]["output"] > 0


def test_who_leaves_meanwhile_is_let_go(stack: Stack, held: Held) -> None:
    before = len(stack.records())
    body_budget = stack.gateway.deployment.runtime.body_budget
    with Raw(stack) as client:
        client.send(post(LARGE))
        assert held.entered.wait(30)
        assert body_budget.reserved > 1 << 20
    until(lambda: not stack.gateway.deployment.runtime.active.requests)
    assert body_budget.reserved == 0
    assert [record["outcome"] for record in stack.records()[before:]] == ["cancelled"]


def test_what_is_wrong_with_it_is_told_as_ever(stack: Stack) -> None:
    for content, code in ((json.dumps(LARGE)[:-1], "invalid_json"), (json.dumps({**LARGE, "n": "x"}), "invalid_value")):
        reply = httpx.post(stack.url + URL, content=content, headers={"content-type": "application/json"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, code)


def test_all_that_goes_over_a_large_request_is_done_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the event loop each of these would make everybody wait for as long."""
    seen: dict[str, set[str]] = {}

    def noted(owner: Any, name: str) -> None:
        step = getattr(owner, name)

        def run_here(*given: Any, **named: Any) -> Any:
            where = "thread" if threading.current_thread().name.startswith("large-bodies") else "loop"
            seen.setdefault(name, set()).add(where)
            return step(*given, **named)

        monkeypatch.setattr(owner, name, run_here)

    for owner, name in (
        (Anthropic, "read"),
        (Vllm, "write"),
        (Estimator, "cost"),
        (asking, "refuse_beyond"),
        (Pool, "routing"),
    ):
        noted(owner, name)
    limits = [{"name": "tokens", "kind": "tokens", "limit": 1 << 30}]
    with Stack(({"max_model_len": 1 << 30},), {"limits": limits, "models": {"m": {"max_context": 1 << 30}}}) as stack:
        for stream in (False, True):
            body = {**LARGE, "max_tokens": 5, "stream": stream}
            assert httpx.post(stack.url + "/v1/messages", json=body, timeout=30).status_code == 200
    assert seen == {name: {"thread"} for name in ("read", "write", "cost", "refuse_beyond", "routing")}


# -- one owner's requests ---------------------------------------------------------------------------------------------


async def test_an_owner_has_one_request_at_a_time_between_reading_and_writing() -> None:
    """Whichever request ends in whichever way, the turn goes to the next one that still waits, and no owner is kept."""
    first, other = Share("a", 1), Share("b", 1)
    await first.wait_turn()
    await other.wait_turn()  # another owner's does not wait
    went: list[str] = []

    async def read(name: str, share: Share) -> None:
        await share.wait_turn()
        went.append(name)

    shares = {name: Share("a", 1) for name in ("left", "passed", "late", "last")}
    tasks = {name: asyncio.create_task(read(name, share)) for name, share in shares.items()}
    await asyncio.sleep(0)  # each runs up to its wait
    tasks["left"].cancel()  # while it waits
    await asyncio.wait([tasks["left"]])
    first.end_turn()
    tasks["passed"].cancel()  # in the moment in which the turn comes
    await asyncio.wait([tasks["passed"], tasks["late"]])
    assert went == ["late"]
    for share in shares.values():
        share.end_turn()  # of those that never had the turn, too
    await tasks["last"]
    assert went == ["late", "last"]
    shares["last"].end_turn()
    shares["last"].end_turn()
    other.end_turn()
    tasks.clear()
    shares.clear()
    del first, other, share
    gc.collect()  # cancelled tasks keep their frames for a while
    assert not threads._owners  # nothing is left


def test_a_large_request_passes_its_turn_on_however_it_ends(stack: Stack) -> None:
    """It fails while it is read, at its worker, or succeeds: the next request of the same caller is served."""
    refused = {**LARGE, "temperature": 100}
    unknown = {**LARGE, "model": "unknown"}
    statuses = [httpx.post(stack.url + URL, json=body).status_code for body in (refused, unknown, LARGE, LARGE)]
    assert statuses == [400, 404, 200, 200]
