"""The view of requests: those under way, the last that have ended, what was refused, and an admin who ends one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from gateway.core.ports import RequestRecord
from gateway.features.console.requests import (
    ENDED_BY_ADMIN,
    MOST,
    AllRequests,
    RecentRequests,
    Requests,
)
from gateway.observe.process_group import ProcessGroup
from tests.support.clients import GENERATING, usual
from tests.support.harness import Stack, until
from tests.support.redis_server import Server
from tests.unit.app.asking import CHAT, key
from tests.unit.features.console.opened import ENVIRON, KEYED, LOCAL, SHOWN

MARKER = "a prompt that stays with its caller"
BLUE, ONE = key("blue-app", team="blue")
RED, TWO = key("red-app", team="red", models=["m"])


class Call:
    """What is looked at of a call, and no more."""

    phase = "queued"
    lane = None
    reply = SimpleNamespace(stream=None)

    def __init__(self, id_: str = "one", **record: Any) -> None:
        self.record = RequestRecord(id=id_, dialect="openai", **record)
        self.interrupted: list[str] = []

    def interrupt(self, error: Any) -> None:
        self.interrupted.append(error.code)


async def ended(recent: RecentRequests, *calls: Any) -> None:
    async def nothing(call: Any) -> None:
        pass

    for call in calls:
        await recent.around_request(nothing)(call)


@pytest.fixture(scope="module")
def keyed() -> Iterator[Stack]:
    with Stack(
        ({"output_tokens": 100_000, "itl_ms": 20},), {**KEYED, "keys": {**ONE, **TWO}}, environ=ENVIRON
    ) as stack:
        yield stack


def shown(stack: Stack, match: str = "") -> Any:
    found = httpx.get(stack.admin_url + "/console/requests.json", params={"match": match}, headers=SHOWN, timeout=30)
    assert found.status_code == 200, found.text
    assert MARKER not in found.text
    return found.json()


def sent(stack: Stack, secret: str, path: str, body: dict[str, Any], id_: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {secret}", "x-api-key": secret, "x-request-id": id_}
    return httpx.post(stack.url + path, json=body, headers=headers, timeout=30)


@pytest.mark.parametrize("dialect", GENERATING)
def test_a_request_of_each_dialect_is_shown_without_its_text(keyed: Stack, dialect: str) -> None:
    way = usual(dialect)
    body = way.body(MARKER, stream=False, max_tokens=3) | ({"model": "m"} if way.field("model") else {})
    reply = sent(keyed, BLUE, way.path("m"), body, f"shown-{dialect}-")
    keyed.records()
    (one,) = shown(keyed, f"shown-{dialect}-")["ended"]
    assert (one["dialect"], one["status"], one["key"], one["team"]) == (dialect, reply.status_code, "blue-app", "blue")
    assert (one["outcome"], one["model"], one["worker"]) == ("ok", "m", keyed.sim.url), reply.text
    assert one["output_tokens"] >= 1
    assert one["duration_ms"] > 0
    assert "stage" not in one


def test_one_under_way_is_shown_as_it_streams_and_then_as_ended(keyed: Stack) -> None:
    body = {**CHAT, "stream": True, "max_tokens": 2000, "messages": [{"role": "user", "content": MARKER}]}
    headers = {"authorization": f"Bearer {BLUE}", "x-request-id": "long-one"}
    with httpx.stream("POST", keyed.url + "/v1/chat/completions", json=body, headers=headers, timeout=30) as reply:
        pieces = reply.iter_bytes()
        next(pieces)
        (one,) = shown(keyed, "LONG-one")["under_way"]
        assert (one["stage"], one["key"], one["model"], one["worker"]) == ("streaming", "blue-app", "m", keyed.sim.url)
        assert one["time_to_first_token_ms"] > 0
        assert one["output_tokens"] >= 1
        assert "outcome" not in one
        assert shown(keyed, "another")["under_way"] == []
    keyed.records()
    found = shown(keyed, "long-one")
    assert found["under_way"] == []
    assert [one["outcome"] for one in found["ended"]] == ["cancelled"]


def test_a_refusal_is_shown_with_its_reason_and_counted() -> None:
    limits = [{"name": "few", "kind": "requests", "limit": 2, "per_s": "1h", "scope": ["key"]}]
    config = {**KEYED, "keys": {**ONE, **TWO}, "limits": limits}
    with Stack(({},), config, environ=ENVIRON) as stack:
        for number in range(5):
            sent(stack, RED, "/v1/chat/completions", CHAT, f"red-{number}")
        sent(stack, BLUE, "/v1/chat/completions", {**CHAT, "model": "unknown"}, "wrong")
        stack.records()
        found = shown(stack)
        refused = [one for one in found["ended"] if one["outcome"] == "refused"]
        assert {(one["id"], one["status"], one.get("limit"), one.get("asked")) for one in refused} == {
            *((f"red-{number}", 429, "few", None) for number in (2, 3, 4)),
            ("wrong", 404, None, "unknown"),
        }
        assert found["refusals"] == [
            {"key": "red-app", "team": "red", "limit": "few", "requests": 3},
            {"key": "blue-app", "team": "blue", "limit": "model_not_found", "requests": 1},
        ]
        assert {one["id"] for one in shown(stack, "few")["ended"]} == {"red-2", "red-3", "red-4"}


def test_without_the_console_nothing_is_kept_and_no_step_is_wrapped(keyed: Stack) -> None:
    def layers(stack: Stack) -> list[object]:
        ways = [stack.gateway.deployment.runtime.way, stack.gateway.deployment.runtime.models["m"].way]
        return [one for way in ways for one in way.features if isinstance(one, RecentRequests)]

    assert len(layers(keyed)) == 2
    with Stack(config=LOCAL) as stack:
        assert layers(stack) == []
        assert httpx.get(stack.admin_url + "/console/requests.json").status_code == 404


def test_what_was_kept_outlives_a_reload(keyed: Stack) -> None:
    sent(keyed, BLUE, "/v1/chat/completions", {**CHAT, "max_tokens": 2}, "before-the-reload")
    keyed.records()
    keyed.run(keyed.gateway.reload(keyed.config()))
    assert len(shown(keyed, "before-the-reload")["ended"]) == 1


# -- bounds -----------------------------------------------------------------------------------------------------------


async def test_only_so_many_are_kept_and_nothing_of_a_call_but_its_record() -> None:
    recent = RecentRequests()
    await ended(recent, *(Call(str(number)) for number in range(MOST + 7)))
    found = await recent.listed("")
    assert [one.id for one in found.ended] == [str(number) for number in range(MOST + 6, 6, -1)]
    found = await recent.listed("", limit=2)
    assert ([one.id for one in found.ended], found.older) == (["506", "505"], MOST - 2)
    # a request's body, which no reply shows
    assert {type(kept) for _, kept in recent._ended} == {RequestRecord}
    assert (await recent.listed("")).under_way == []


async def test_of_many_under_way_the_newest_are_shown_and_each_is_found() -> None:
    recent, going = RecentRequests(), asyncio.Event()

    async def waits(call: Any) -> None:
        await going.wait()

    calls: list[Any] = [Call(f"n{number}.") for number in range(MOST + 20)]
    running = [asyncio.ensure_future(recent.around_request(waits)(call)) for call in calls]
    await asyncio.sleep(0)
    found = await recent.listed("")
    assert (len(found.under_way), found.others) == (MOST, 20)
    found = await recent.listed("", limit=3)
    assert ([one.id for one in found.under_way], found.others) == (["n519.", "n518.", "n517."], MOST + 17)
    found = await recent.listed("n51", limit=3)
    assert ([one.id for one in found.under_way], found.others) == (["n519.", "n518.", "n517."], 8)
    assert [one.id for one in (await recent.listed("n3.")).under_way] == ["n3."]
    going.set()
    await asyncio.gather(*running)


async def test_other_work_goes_on_while_many_are_looked_through() -> None:
    recent, turns = RecentRequests(), 0
    recent._under_way = {Call(str(number)): 0.0 for number in range(5_000)}  # type: ignore[misc]

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    going = asyncio.create_task(others())
    assert [one.id for one in (await recent.listed("4999")).under_way] == ["4999"]
    looked, turns = turns, 0
    assert (await recent.listed("", limit=100)).others == 4_900
    going.cancel()
    assert looked >= 49
    assert turns <= 1, "without a filter the others are not looked at"


async def test_refusals_are_counted_for_five_minutes_by_a_bounded_number_of_reasons() -> None:
    now = 1_000_000.0
    recent = RecentRequests(lambda: now)
    await ended(recent, *(Call(outcome="refused", key="a", team="t", limit="few") for _ in range(3)))
    await ended(recent, Call(outcome="refused", key="a", team="t", code="over_cap"), Call(outcome="failed", key="a"))
    now += 200
    await ended(recent, Call(outcome="refused", key="a", team="t", limit="few"))
    counts = [(one.key, one.team, one.limit, one.requests) for one in (await recent.listed("")).refusals]
    assert counts == [("a", "t", "few", 4), ("a", "t", "over_cap", 1)]
    now += 130
    assert [(one.limit, one.requests) for one in (await recent.listed("")).refusals] == [("few", 1)]
    now += 400
    assert (await recent.listed("")).refusals == []
    await ended(recent, *(Call(outcome="refused", key=str(number)) for number in range(1_500)))
    assert (await recent.listed("")).refusals[0].limit == "others"
    assert (await recent.listed("")).refusals[0].requests == 500


# -- several processes ------------------------------------------------------------------------------------------------


async def test_any_process_shows_and_ends_those_of_all(tmp_path: Path) -> None:
    groups = [ProcessGroup(tmp_path, number, 3) for number in range(3)]  # the third is not there
    owns = [RecentRequests(), RecentRequests()]
    every = [AllRequests(own, group) for own, group in zip(owns, groups, strict=False)]
    going = asyncio.Event()

    async def waits(call: Any) -> None:
        await going.wait()

    async def answered(one: AllRequests, question: bytes) -> bytes:
        return await one.answer(question.removeprefix(b"requests "))

    for group, one in zip(groups, every, strict=False):
        await group.start(CollectorRegistry(), partial(answered, one))
    try:
        calls: list[Any] = [Call("here", team="blue"), Call("same", team="blue"), Call("same", team="red")]
        running = [asyncio.ensure_future(own.around_request(waits)(call))
                   for own, call in zip((owns[0], *owns), calls, strict=False)]  # fmt: skip
        await asyncio.sleep(0)
        await ended(owns[1], Call("there", outcome="refused", key="k", limit="few"))
        await ended(owns[0], Call("here too", outcome="refused", key="k", limit="few"))
        for one in every:
            found = await one.listed("")
            assert sorted(view.id for view in found.under_way) == ["here", "same", "same"]
            assert {view.id for view in found.ended} == {"there", "here too"}
            assert [(count.key, count.requests) for count in found.refusals] == [("k", 2)]
            assert await one.teams("same") == {"blue", "red"}
            assert await one.teams("same\nhere") == set()
            assert [view.id for view in (await one.listed("there")).ended] == ["there"]
            found = await one.listed("", limit=1)
            assert (len(found.under_way), found.others, len(found.ended), found.older) == (1, 2, 1, 1)
        await every[0].end("same", ["red"])
        assert [call.interrupted for call in calls] == [[], [], [ENDED_BY_ADMIN]]
        going.set()
        await asyncio.gather(*running)
    finally:
        for group in groups:
            group.close()


async def test_a_process_that_ends_amid_its_answer_is_left_out() -> None:
    class Torn:
        async def ask(self, question: bytes) -> list[bytes]:
            return [b'{"under_way": [']

    torn: Any = Torn()
    requests = AllRequests(RecentRequests(), torn)
    assert await requests.listed("") == Requests([], [], [])
    assert await requests.teams("x") == set()


# -- an admin ends one ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ending(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    root, admins = key("root")
    lead, leads = key("lead")
    config = {
        **KEYED,
        "keys": {**ONE, **TWO},
        "keys_store": "redis",
        "admins": {**admins, "lead": {"hash": leads["lead"]["hash"], "teams": ["blue"]}},
    }
    with Server(tmp_path_factory.mktemp("valkey"), "--appendonly", "yes") as server:
        config["redis"] = {"addresses": [server.address], "timeout_s": 10}
        with Stack(
            ({"output_tokens": 100_000, "itl_ms": 20},), config, environ={**ENVIRON, "ROOT": root, "LEAD": lead}
        ) as stack:
            yield stack


def end(stack: Stack, who: str, id_: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {(stack.environ or {})[who]}"}
    return httpx.post(f"{stack.admin_url}/admin/v1/requests/{id_}/end", headers=headers, timeout=30)


@pytest.mark.feature("admin")
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_an_admin_ends_one_of_its_teams_and_the_record_names_the_admin(
    ending: Stack, dialect: str, stream: bool
) -> None:
    id_ = f"end-{dialect}-{stream}"
    way = usual(dialect)
    body = {**way.body(MARKER, stream=stream, max_tokens=90_000), "model": "m"}

    async def client() -> tuple[int, bytes]:
        headers, text = {"authorization": f"Bearer {BLUE}", "x-request-id": id_}, b""
        async with (
            httpx.AsyncClient(timeout=60) as caller,
            caller.stream("POST", ending.url + way.path("m"), json=body, headers=headers) as reply,
        ):
            with contextlib.suppress(httpx.RemoteProtocolError):  # a stream may be cut behind its error
                async for piece in reply.aiter_bytes():
                    text += piece
            return reply.status_code, text

    asking = asyncio.run_coroutine_threadsafe(client(), ending.loop)
    stage = "streaming" if stream else "first_output"
    until(lambda: [one["stage"] for one in shown(ending, id_)["under_way"]] == [stage])
    for who, other in (("LEAD", "another"), ("ROOT", f"{id_}%0A")):
        refused = end(ending, who, other)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "unknown_request")
    aborted = ending.sim.ledger.aborted
    assert end(ending, "LEAD", id_).json() == {"id": id_}
    status, text = asking.result(60)
    assert b"an operator has ended this request" in text
    assert status == (200 if stream else 403)
    ending.records()
    (one,) = shown(ending, id_)["ended"]
    assert (one["outcome"], one["code"]) == ("failed" if stream else "refused", ENDED_BY_ADMIN)
    until(lambda: ending.sim.ledger.aborted == aborted + 1)
    headers = {"authorization": f"Bearer {(ending.environ or {})['ROOT']}"}
    line = httpx.get(ending.admin_url + "/admin/v1/audit", headers=headers).json()["changes"][0]
    assert (line["what"], line["by"], line["name"], line["team"]) == ("end", "lead", id_, "blue")


@pytest.mark.feature("admin")
def test_nobody_ends_what_is_not_of_its_teams(ending: Stack) -> None:
    body = {**CHAT, "stream": True, "max_tokens": 90_000}
    headers = {"authorization": f"Bearer {RED}", "x-request-id": "red-one"}
    with httpx.stream("POST", ending.url + "/v1/chat/completions", json=body, headers=headers, timeout=30) as reply:
        pieces = reply.iter_bytes()
        next(pieces)
        assert end(ending, "LEAD", "red-one").status_code == 404
        console = httpx.post(f"{ending.admin_url}/admin/v1/requests/red-one/end", headers=SHOWN)
        assert console.status_code == 401, "the console's key ends nothing"
        assert len(shown(ending, "red-one")["under_way"]) == 1
        assert end(ending, "ROOT", "red-one").status_code == 200
        with contextlib.suppress(httpx.RemoteProtocolError):
            assert b"ended this request" in b"".join(pieces)
    ending.records()
    assert end(ending, "ROOT", "red-one").status_code == 404
