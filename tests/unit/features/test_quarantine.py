"""Requests of which workers die: how many, and what is told of them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Request
from gateway.features import quarantine
from gateway.features.quarantine import MOST, Quarantine
from tests.support.clients import REQUESTS, WAYS, Way, usual
from tests.support.harness import Stack, soon
from tests.unit.features.test_mirror import copies
from tests.unit.kernel.asking import chat, scripted

PATH = "/v1/chat/completions"
CALM = {"retry": {"min_per_second": 100, "attempts": 5}}


@pytest.mark.parametrize("dialect", REQUESTS)
def test_two_workers_die_of_a_request_and_no_third(dialect: str) -> None:
    way = usual(dialect)
    body = {"model": "m", **way.body(scripted(text="a", fault="die@before"), stream=False, max_tokens=9)}
    with Stack(({}, {}, {}), config=CALM) as stack:
        # A counter that begins at one would have no increase, and its alert never fire.
        assert 'dragoman_quarantined_requests_total{model="m"} 0.0' in httpx.get(stack.url + "/metrics").text
        reply = httpx.post(stack.url + way.path("m"), json=body, timeout=20)
        assert reply.status_code in (424, 500, 502)
        assert "two workers died" in reply.text
        if dialect != "azure_inference":  # its SDK would send the request again when that is over
            assert 1 <= int(reply.headers["retry-after"]) <= 60
            assert reply.headers["x-should-retry"] == "false"
        assert ("retry-after" in reply.headers) is (dialect != "azure_inference")
        record = stack.record()
        assert (record["attempts"], record["outcome"], record["code"]) == (2, "failed", "request_quarantined")
        (event,) = stack.events("request quarantined")
        assert (event["level"], event["model"], len(event["digest"])) == ("warning", "m", 32)
        again = httpx.post(stack.url + way.path("m"), json=body, timeout=20)
        assert (again.status_code, stack.record()["attempts"]) == (reply.status_code, 0)
        assert 'dragoman_quarantined_requests_total{model="m"} 1.0' in httpx.get(stack.url + "/metrics").text
        other = {"model": "m", **way.body("hello", stream=False, max_tokens=9)}
        assert httpx.post(stack.url + way.path("m"), json=other, timeout=20).status_code == 200


def test_a_worker_that_dies_on_a_kept_connection_is_a_death() -> None:
    """The request looks as if it had met the end of an idle connection, and is sent once more: to nobody."""
    config = {**CALM, "models": {"m": {"policy": "round_robin"}}}
    with Stack(({}, {}, {}), config=config) as stack:
        for _ in range(3):
            assert httpx.post(stack.url + PATH, json=chat(), timeout=20).status_code == 200
        assert stack.gateway.deployment.transports["m"].idle == 3
        reply = httpx.post(stack.url + PATH, json=chat(scripted(text="a", fault="die@before")), timeout=20)
        assert reply.json()["error"]["code"] == "request_quarantined"
        assert httpx.post(stack.url + PATH, json=chat(), timeout=20).status_code == 200


def test_clients_that_try_again_kill_two_workers_in_all() -> None:
    with Stack(({}, {}, {}), config={"retry": {"attempts": 1}}) as stack:
        body = chat(scripted(text="a", fault="die@before"))
        for _ in range(2):
            assert httpx.post(stack.url + PATH, json=body, timeout=20).status_code == 502
            stack.run(settled(stack))  # until then the next one may go to the worker that has just died
        assert httpx.post(stack.url + PATH, json=body, timeout=20).json()["error"]["code"] == "request_quarantined"


async def settled(stack: Stack) -> None:
    quarantine = stack.service("quarantine")
    while quarantine.notes:
        await asyncio.wait(quarantine.notes)


@pytest.mark.parametrize("fault", ["reset@before", "fin@before", "reset@headers", "status:500", "stall:0@before"])
def test_a_connection_that_breaks_while_its_worker_lives_is_no_death(fault: str) -> None:
    with Stack(({}, {}, {}), config=CALM | {"breaker": {"failures": 100}}) as stack:
        body = chat(scripted(text="a", fault=fault), stream=True)
        for _ in range(3):
            httpx.post(stack.url + PATH, json=body, timeout=20)
            assert stack.record()["attempts"] in (1, 3)
        stack.run(settled(stack))
        assert stack.events("request quarantined") == []


def test_a_worker_that_dies_after_output_did_not_die_of_the_prompt() -> None:
    config = {**CALM, "models": {"m": {"continue_streams": False}}}
    with Stack(({}, {}, {}), config=config) as stack:
        body = chat(scripted(text="a b c d", fault="die@2"), stream=True)
        for _ in range(2):
            with pytest.raises(httpx.RemoteProtocolError):
                httpx.post(stack.url + PATH, json=body, timeout=20)
        stack.run(settled(stack))
        assert stack.events("request quarantined") == []


def test_a_prompt_that_many_send_is_not_held_for_what_workers_die_of() -> None:
    """Some of it are under way at every death; others are answered in between."""
    config = {**CALM, "models": {"m": {"policy": "round_robin"}}}
    with Stack(({}, {}, {}, {}), config=config) as stack:
        common = chat(scripted(text="a"))
        for sim in stack.sims[:2]:
            sim.fault("die@before", count=1, path=PATH)
            for _ in range(6):  # every worker has its turn
                assert httpx.post(stack.url + PATH, json=common, timeout=20).status_code == 200
            assert any(entry.fault for entry in sim.ledger.entries)
        stack.run(settled(stack))
        assert stack.events("request quarantined") == []


def test_workers_that_are_sick_and_go_on_are_no_deaths() -> None:
    """They answer 500, and so do their health paths: an outage that says nothing of a request."""
    with Stack(({}, {}, {}), config=CALM) as stack:
        for sim in stack.sims:
            httpx.post(sim.url + "/sim/state", json={"health": 503})
        body = chat(scripted(text="a", fault="status:500"))
        codes = {httpx.post(stack.url + PATH, json=body, timeout=20).json()["error"]["code"] for _ in range(2)}
        assert "request_quarantined" not in codes
        stack.run(settled(stack))
        assert stack.events("request quarantined") == []


class Ending:
    """A server as vLLM's is when its engine dies: it answers 500, its health path 503, and it listens no longer."""

    def __init__(self) -> None:
        self.dead = False
        self.served = 0

    async def __aenter__(self) -> Ending:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST"):
            self.served, self.dead = self.served + 1, True
            status = b"500 Internal Server Error"
        else:
            status = b"503 Service Unavailable" if self.dead else b"200 OK"
            if self.dead:
                self._server.close()
        writer.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()


def test_an_engine_that_dies_behind_its_server_is_a_death() -> None:
    async def started() -> list[Ending]:
        return [await Ending().__aenter__() for _ in range(3)]

    async def ended() -> None:
        for one in servers:
            await one.__aexit__()

    with Stack(config=CALM) as stack:
        servers = stack.run(started())
        models = {"m": {"workers": [one.url for one in servers]}}
        stack.run(stack.gateway.reload(stack.config({**CALM, "models": models})))
        reply = httpx.post(stack.url + PATH, json=chat(), timeout=20)
        assert reply.json()["error"]["code"] == "request_quarantined"
        assert sum(one.served for one in servers) == 2
        stack.run(ended())


def reload(stack: Stack, **models: dict[str, Any]) -> None:
    """These models in place of all others, of one engine."""
    base = {"backend": "vllm", "upstream_model": "sim"}
    given = {name: {**base, **options} for name, options in models.items()}
    stack.run(stack.gateway.reload(stack.config({**CALM, "models": given})))


def quarantined_twice(stack: Stack) -> None:
    body = chat(scripted(text="a", fault="die@before"))
    codes = [httpx.post(stack.url + PATH, json=body, timeout=20).json()["error"]["code"] for _ in range(2)]
    assert codes == ["request_quarantined"] * 2


def test_no_fallback_is_killed_where_no_worker_is_left() -> None:
    with Stack(({}, {}, {}), config=CALM) as stack:
        two = [sim.url for sim in stack.sims[:2]]
        reload(
            stack,
            m={"workers": two, "fallback": ["spare"], "mirror": {"model": "other"}},
            spare={"workers": [stack.sims[2].url]},
            other={"workers": ["http://127.0.0.1:1"]},
        )
        quarantined_twice(stack)
        page = httpx.get(stack.url + "/metrics").text
        assert 'dragoman_mirrored_requests_total{model="m",result="skipped",to="other"} 1.0' in page, "only the first"
        reply = httpx.post(stack.url + PATH, json=chat(), timeout=20)
        assert reply.headers["x-dragoman-model"] == "spare"


def test_deaths_of_all_models_count_together() -> None:
    """Each model has one worker: the second fallback is not asked."""
    with Stack(({}, {}, {}), config=CALM) as stack:
        first, second, third = ({"workers": [sim.url]} for sim in stack.sims)
        reload(stack, m={**first, "fallback": ["next", "last"]}, next=second, last=third)
        quarantined_twice(stack)
        assert httpx.post(stack.url + PATH, json=chat(), timeout=20).headers["x-dragoman-model"] == "last"


def test_a_copy_of_which_two_workers_die_is_sent_no_more_and_its_client_is_served() -> None:
    with Stack(({}, {}, {}, {}), config=CALM) as stack:
        first, *others = [sim.url for sim in stack.sims]
        reload(stack, m={"workers": [first], "mirror": {"model": "copy"}}, copy={"workers": others})
        for sim in stack.sims[1:]:
            sim.fault("die@before", path=PATH)
        for _ in range(4):
            assert httpx.post(stack.url + PATH, json=chat(), timeout=60).status_code == 200
            stack.run(copies(stack).idle(), 60)
            stack.run(settled(stack), 60)
        page = httpx.get(stack.url + "/metrics").text
        for result in ("failed", "skipped"):
            assert f'dragoman_mirrored_requests_total{{model="m",result="{result}",to="copy"}} 2.0' in page
        assert [event["model"] for event in stack.events("request quarantined")] == ["copy"]
        assert stack.sims[0].ledger.received == 4


def test_a_copy_that_breaks_after_output_is_no_death_and_an_answer_clears_it() -> None:
    with Stack(({}, {}, {}, {}), config=CALM) as stack:
        first, *others = [sim.url for sim in stack.sims]
        reload(stack, m={"workers": [first], "mirror": {"model": "copy"}}, copy={"workers": others})
        ward = stack.service("quarantine")
        for fault, noted in (("die@2", 0), ("die@before", 1), ("", 0)):
            for sim in stack.sims[1:]:
                sim.fault(fault, path=PATH)
            body = chat(scripted(text="a b c d"), stream=True)
            assert httpx.post(stack.url + PATH, json=body, timeout=60).status_code == 200
            stack.run(copies(stack).idle(), 60)
            stack.run(settled(stack), 60)
            assert len(ward.noted) == noted, fault


def delay_probes(stack: Stack, seconds: float) -> None:
    """What tells whether a worker died is told so much later."""
    ward: Quarantine = stack.service("quarantine")
    probe = ward.death_of

    async def late(model: str, worker: Any) -> object | None:
        await asyncio.sleep(seconds)
        return await probe(model, worker)

    ward.death_of = late


def test_the_probe_that_tells_of_a_death_is_no_work_of_the_gateway() -> None:
    with Stack(({}, {}, {}), config={**CALM, "routing": {"explain": "always"}}) as stack:
        delay_probes(stack, 0.5)
        reply = httpx.post(stack.url + PATH, json=chat(scripted(text="a", fault="die@before")), timeout=60)
        assert reply.json()["error"]["code"] == "request_quarantined"
        record = stack.record()
        assert record["queue_ms"] >= 490  # timers of uvloop have whole milliseconds, and may run one early
        assert record["overhead_ms"] == pytest.approx(
            record["duration_ms"] - record["queue_ms"] - record["upstream_ms"], abs=0.01
        )
        assert float(reply.headers["x-dragoman-queue-ms"]) >= 490
        assert float(reply.headers["x-dragoman-overhead-ms"]) <= record["overhead_ms"] + 1


@pytest.mark.parametrize("way", [way for way in WAYS if way.operation == "embed"], ids=str)
def test_a_hedged_request_of_which_both_workers_die_gets_no_third(way: Way) -> None:
    async def ask(stack: Stack) -> httpx.Response:
        async with httpx.AsyncClient(base_url=stack.url, timeout=60) as client:
            asking = asyncio.create_task(client.post(way.path("m"), json={"model": "m", **way.body()}))
            await soon(lambda: sum(sim.ledger.running for sim in stack.sims) == 2)
            for sim in stack.sims:
                if sim.ledger.running:
                    sim.die()
                else:
                    sim.fault("")
            return await asking

    with Stack(({"fault": "stall@before"},) * 3, {**CALM, "models": {"m": {"hedge_s": 0.05}}}) as stack:
        reply = stack.run(ask(stack), 60)
        assert "two workers died" in reply.text
        assert (stack.record()["attempts"], stack.record()["code"]) == (2, "request_quarantined")
        assert sorted(sim.ledger.received for sim in stack.sims) == [0, 1, 1]
        again = httpx.post(stack.url + way.path("m"), json={"model": "m", **way.body()}, timeout=20)
        assert (again.status_code, stack.record()["attempts"]) == (reply.status_code, 0)


def test_no_prefill_worker_of_a_fallback_is_the_third() -> None:
    """The probes that tell of the deaths are late: the fallback is asked before they are done."""
    with Stack(({}, {}, {}, {}), config=CALM) as stack:
        base = {"backend": "vllm", "upstream_model": "sim"}
        models: dict[str, Any] = {
            "m": {"workers": [sim.url for sim in stack.sims[:2]], "fallback": ["apart"]},
            "apart": {**base, "workers": [stack.sims[2].url], "prefill": {"workers": [stack.sims[3].url]}},
        }
        twice = {"retry": {"min_per_second": 100, "attempts": 2}, "models": models}
        stack.run(stack.gateway.reload(stack.config(twice)))
        delay_probes(stack, 0.2)
        reply = httpx.post(stack.url + PATH, json=chat(scripted(text="a", fault="die@before")), timeout=20)
        assert reply.json()["error"]["code"] == "request_quarantined"
        assert [sim.ledger.received for sim in stack.sims] == [1, 1, 0, 0]


def test_no_worker_is_the_third_behind_a_prefill_worker() -> None:
    with Stack(({}, {}, {}), config=CALM) as stack:
        first, second, compute = (sim.url for sim in stack.sims)
        apart = {"workers": [second], "prefill": {"workers": [compute]}}
        reload(stack, m={"workers": [first], "fallback": ["apart"]}, apart=apart)
        body = chat(scripted(text="a", fault="die@before"), max_tokens=9)
        reply = httpx.post(stack.url + PATH, json=body, timeout=20)
        assert reply.json()["error"]["code"] == "request_quarantined"
        assert [sim.ledger.received for sim in stack.sims] == [1, 0, 1]
        assert [worker.in_flight for worker in stack.gateway.deployment.workers.values()] == [0, 0, 0]


def test_it_can_be_switched_off_and_stays_over_a_reload() -> None:
    with Stack(({}, {}, {}, {}), config={**CALM, "breaker": {"quarantine_s": 0}}) as stack:
        assert stack.service("quarantine") is None
        stack.run(stack.gateway.reload(stack.config({"breaker": {"quarantine_s": 60}})))
        body = chat(scripted(text="a", fault="die@before"))
        assert httpx.post(stack.url + PATH, json=body, timeout=20).status_code == 502
        stack.run(stack.gateway.reload(stack.config({"breaker": {"quarantine_s": 50}})))
        assert httpx.post(stack.url + PATH, json=body, timeout=20).status_code == 502
        assert stack.record()["attempts"] == 0


# -- by itself ------------------------------------------------------------------------------------------------------


def asked(body: bytes, path: str = PATH) -> Request:
    return Request("POST", path, body=body)


class Ward:
    """A quarantine with a clock of its own. `deaths`: worker -> the name of its death."""

    def __init__(self) -> None:
        self.now = 0.0
        self.deaths: dict[str, object] = {}
        self.probes: list[str] = []
        self.told: list[str] = []
        told = self.told
        self.quarantine = Quarantine(60.0, self.death_of, lambda model, digest: told.append(digest), self.clock)

    def clock(self) -> float:
        return self.now

    async def death_of(self, model: str, worker: Any) -> object | None:
        self.probes.append(worker)
        await asyncio.sleep(0)
        return self.deaths.get(worker)

    async def suspect(self, worker: Any, *bodies: bytes) -> None:
        await asyncio.gather(*[self.quarantine.suspect("m", worker, asked(body)) for body in bodies])

    async def held(self, body: bytes) -> bool:
        try:
            await self.quarantine.refuse_held(asked(body))
        except GatewayError as error:
            return (error.kind, error.code) == (Kind.UPSTREAM, "request_quarantined")
        return False


async def test_one_death_counts_once_and_is_asked_for_once() -> None:
    ward = Ward()
    ward.deaths = {"a": "a 1", "b": "b 1"}
    await ward.suspect("a", b"x", b"x", b"y")
    assert ward.probes == ["a"]
    await ward.suspect("a", b"x")
    assert not await ward.held(b"x")
    await ward.suspect("b", b"x")
    assert await ward.held(b"x")
    assert not await ward.held(b"y")
    ward.deaths["a"] = "a 2"  # it had come back
    await ward.suspect("a", b"y")
    assert await ward.held(b"y")
    assert len(ward.told) == 2


async def test_a_path_that_names_another_model_is_another_request() -> None:
    ward = Ward()
    ward.deaths = {"a": 1, "b": 2}
    for worker in ("a", "b"):
        await ward.suspect(worker, b"x")
    await ward.quarantine.refuse_held(asked(b"x", "/deployments/other/chat/completions"))
    assert await ward.held(b"x")


async def test_a_long_body_is_hashed_whole_and_not_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    ward, threads = Ward(), set()
    ward.deaths = {"a": 1, "b": 2}

    def hash_of(body: bytes, key: bytes) -> bytes:
        threads.add(threading.current_thread())
        return body[-20:] + key

    monkeypatch.setattr(quarantine, "_hash", hash_of)
    long = b"x" * (1 << 18)
    for worker in ("a", "b"):
        await ward.suspect(worker, long + b"deadly")
    assert await ward.held(long + b"deadly")
    assert not await ward.held(long + b"benign")
    await ward.quarantine.clear(asked(long + b"deadly"))
    assert not await ward.held(long + b"deadly")
    assert threading.current_thread() not in threads


async def test_both_are_forgotten_in_time() -> None:
    ward = Ward()
    ward.deaths = {"a": 1, "b": 2, "c": 3}
    await ward.suspect("a", b"x")
    ward.now = 61.0
    await ward.suspect("b", b"x")
    assert not await ward.held(b"x")
    await ward.suspect("c", b"x")
    assert await ward.held(b"x")
    ward.now = 121.0
    assert not await ward.held(b"x")
    await ward.quarantine.clear(asked(b"z"))
    assert not ward.quarantine.held


async def test_who_is_answered_is_cleared() -> None:
    ward = Ward()
    ward.deaths = {"a": 1, "b": 2, "c": 3}
    await ward.suspect("a", b"x", b"y")
    await ward.quarantine.clear(asked(b"x"))
    await ward.suspect("b", b"x", b"y")
    assert not await ward.held(b"x")
    assert await ward.held(b"y")
    await ward.quarantine.clear(asked(b"y"))
    assert not await ward.held(b"y")
    ward.now = 61.0
    await ward.quarantine.clear(asked(b"z"))
    assert not ward.quarantine.noted, "bodies are looked at no longer than need be"


async def test_memory_is_bounded() -> None:
    ward = Ward()
    ward.deaths = {"a": 1, "b": 2}
    bodies = [b"%d" % number for number in range(MOST + 50)]
    await ward.suspect("a", *bodies)
    await ward.suspect("b", *reversed(bodies))
    assert len(ward.quarantine.held) <= MOST
    assert len(ward.quarantine.noted) <= MOST
    assert await ward.held(bodies[-1])
    assert not await ward.held(bodies[0]), "its first death was forgotten"
