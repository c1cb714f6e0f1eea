"""One configuration at work: who may ask, what is learnt of workers, what is logged at level debug."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import ssl
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import jwt
import pytest

from gateway.app import services
from gateway.tools import bounded
from tests.support.harness import PROBED, Stack, load_text, soon, until
from tests.support.standins.identity import identity
from tests.support.standins.serving import certificate, server_tls
from tests.unit.app.asking import CHAT, GONE, key
from tests.unit.auth.test_jwt import AUDIENCE, ISSUER, RSA, keys, token

# -- keys -----------------------------------------------------------------------------------------------------------


def test_without_a_key_no_body_is_read() -> None:
    with Stack(config={"keys": key("k")[1]}) as stack:
        for path in ("/v1/chat/completions", "/nothing", "/v1/models"):
            with socket.create_connection(("127.0.0.1", int(stack.url.rsplit(":", 1)[1]))) as client:
                client.settimeout(30)
                client.sendall(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n" % path.encode())
                answer = client.recv(65536)
            assert answer.startswith(b"HTTP/1.1 401 "), "although nothing of the body was sent"
            assert b"www-authenticate: Bearer\r\n" in answer


@pytest.mark.parametrize("stream", [False, True])
def test_a_forbidden_model_is_answered_as_an_absent_one(stream: bool) -> None:
    secret, entry = key("k", models=["m"])
    config = {"keys": entry, "models": {"hidden": {**GONE, "aliases": ["veiled"]}}}
    with Stack(config=config) as stack, httpx.Client(base_url=stack.url) as client:
        client.headers["authorization"] = f"Bearer {secret}"

        def answers(name: str) -> list[tuple[int, str, dict[str, str]]]:
            found = []
            for path, body in (
                ("/v1/chat/completions", {**CHAT, "model": name, "stream": stream}),
                ("/v1/completions", {"model": name, "prompt": "hi"}),
                ("/v1/embeddings", {"model": name, "input": "hi"}),
            ):
                found.append(client.post(path, json=body))
            found.append(client.get(f"/v1/models/{name}"))
            return [
                (
                    reply.status_code,
                    reply.text.replace(name, "NAME"),
                    dict(reply.headers) | {"x-request-id": "", "date": ""},
                )
                for reply in found
            ]

        absent = answers("absent")
        assert [status for status, _, _ in absent] == [404] * 4
        assert answers("hidden") == absent
        assert answers("veiled") == absent
        assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["m", "alias"]
        assert client.post("/v1/chat/completions", json=CHAT).status_code == 200


class Provider:
    """An identity provider that gives `answer` to all who ask, and leaves it to them to hang up."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.asked: list[bytes] = []
        self._answering: list[asyncio.Task[Any] | None] = []

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/keys"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await asyncio.gather(*filter(None, self._answering))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._answering.append(asyncio.current_task())
        self.asked.append(await reader.readuntil(b"\r\n\r\n"))
        with contextlib.suppress(OSError):
            writer.write(b"HTTP/1.1 200 OK\r\n" + self.answer)
            await reader.read()
            writer.close()
            await writer.wait_closed()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"content-length: 9\r\n\r\n{", TimeoutError),
        (b"x: ", TimeoutError),
        (b"content-length: 3000000\r\n\r\n" + b" " * 3_000_000, ValueError),
    ],
    ids=["a body that does not end", "a head that does not end", "a body of any size"],
)
async def test_the_keys_of_tokens_come_soon_and_are_small_or_not_at_all(
    answer: bytes, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "_SOON_S", 0.5)
    async with Provider(answer) as url:
        with pytest.raises(error):
            await bounded.fetch_soon(url)


async def test_the_keys_of_tokens_are_asked_for_unpacked() -> None:
    """A few packed bytes could be any number of them."""
    provider = Provider(b"content-length: 2\r\n\r\n{}")
    async with provider as url:
        assert await bounded.fetch_soon(url) == b"{}"
    assert b"accept-encoding: identity" in provider.asked[0].lower()


def test_the_keys_of_tokens_come_from_a_provider_with_a_private_authority(tmp_path: Path) -> None:
    files = certificate(tmp_path)
    with identity(server_tls(files)) as private:
        options = {"issuer": private.url, "audience": AUDIENCE, "jwks_url": f"{private.url}/keys"}
        claims = {"iss": private.url, "aud": AUDIENCE, "sub": "alice", "exp": time.time() + 60}
        bearer = jwt.encode(claims, private.key, "RS256", {"kid": private.kid})
        for more, status in (({}, 503), ({"ca_file": str(files[0])}, 200)):
            with Stack(config={"jwt": {**options, **more}}) as stack:
                reply = httpx.get(stack.url + "/v1/models", headers={"authorization": f"Bearer {bearer}"})
                assert reply.status_code == status, reply.text


def test_a_reload_keeps_the_keys_of_a_provider_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [keys(r=RSA)]

    async def fetch(url: str, ca_file: str | None) -> str:
        return answers.pop()

    monkeypatch.setattr(services, "fetch_soon", fetch)
    options = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": "http://127.0.0.1:1/keys"}
    with Stack(config={"jwt": options}) as stack:
        headers = {"authorization": f"Bearer {token().decode()}"}
        for _ in range(3):
            assert httpx.get(stack.url + "/v1/models", headers=headers).status_code == 200
            stack.run(stack.gateway.reload(stack.config()))
        assert not answers


def test_a_key_speaks_only_its_dialects() -> None:
    secret, entry = key("k", dialects=["ollama_style"])
    with Stack(config={"keys": entry}) as stack:
        headers = {"authorization": f"Bearer {secret}"}
        refused = httpx.post(stack.url + "/v1/chat/completions", json=CHAT, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "dialect_not_allowed")
        assert stack.sim.ledger.received == 0


def test_a_higher_priority_waits_less() -> None:
    (low, one), (high, other) = key("low"), key("high", priority=5)
    config = {"keys": {**one, **other}, "models": {"m": {"max_in_flight": 1}}}
    with Stack(config=config) as stack:
        pool = stack.gateway.deployment.pools["m"]

        async def all_of_them() -> list[str]:
            order: list[str] = []
            async with httpx.AsyncClient(base_url=stack.url, timeout=30) as client:

                async def ask(secret: str, text: str) -> None:
                    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
                    headers = {"authorization": f"Bearer {secret}"}
                    reply = await client.post("/v1/chat/completions", json=body, headers=headers)
                    order.append(json.loads(reply.text)["choices"][0]["message"]["content"])

                def say(text: str, fault: str = "") -> str:
                    return "sim:" + json.dumps({"text": text, "fault": fault})

                async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
                    tasks.create_task(ask(low, say("first", "stall@before")))
                    for secret, text, waiting in ((low, "low", 1), (high, "high", 2)):
                        await stack.sim.ledger.wait(running=1)
                        tasks.create_task(ask(secret, say(text)))
                        await soon(lambda waiting=waiting: pool.waiting == waiting)  # type: ignore[misc]
                    stack.sim.go_on()
            return order

        assert stack.run(all_of_them(), 40) == ["first", "high", "low"]


# -- workers -------------------------------------------------------------------------------------------------------


def test_the_webs_authorities_are_not_read_for_every_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request goes on while they are."""
    with Stack() as stack:
        read = []
        create = ssl.create_default_context

        def counted(*given: Any, **named: Any) -> ssl.SSLContext:
            read.append(named)
            return create(*given, **named)

        async def made() -> None:
            for _ in range(3):
                asking = stack.gateway.deployment.asking("m")
                asking.ssl_context("https://worker")
                await asking.close()

        monkeypatch.setattr(ssl, "create_default_context", counted)
        stack.run(made())
    assert read == []


def test_a_bug_of_ours_does_not_keep_a_worker_from_its_next_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError

    with Stack() as stack:
        (worker,) = stack.gateway.deployment.workers.values()
        worker.breaker.open_until = 0.001  # was out, and may be tried again
        with monkeypatch.context() as patched:
            patched.setattr("gateway.wire.openai.streams.passthrough.Passthrough.whole", broken)
            assert httpx.post(stack.url + "/v1/chat/completions", json=CHAT).status_code == 500
        assert httpx.post(stack.url + "/v1/chat/completions", json=CHAT).status_code == 200
        assert not worker.breaker.ejected


def test_a_stream_on_trial_keeps_nobody_out_once_it_has_begun() -> None:
    with Stack() as stack:
        (worker,) = stack.gateway.deployment.workers.values()
        worker.breaker.open_until = 0.001  # was out, and may be tried again
        script = {"text": "a b c", "fault": "stall@2"}
        body = {**CHAT, "messages": [{"role": "user", "content": "sim:" + json.dumps(script)}], "stream": True}
        url = stack.url + "/v1/chat/completions"
        with httpx.stream("POST", url, json=body, timeout=20) as reply:
            assert next(reply.iter_bytes())
            assert httpx.post(url, json=CHAT).status_code == 200
        assert [line["worker"] for line in stack.events("worker returned")] == [worker.address]


def test_a_first_output_after_a_keepalive_is_timed_too() -> None:
    """The head is long out by then."""
    with Stack(config={"relay": {"keepalive_s": 0.1}}) as stack:
        script = {"text": "a b c", "fault": "stall:0.5@headers"}
        body = {**CHAT, "messages": [{"role": "user", "content": "sim:" + json.dumps(script)}], "stream": True}
        reply = httpx.post(stack.url + "/v1/chat/completions", json=body, timeout=20)
        assert reply.text.startswith("\n"), "the head was out before"
        (record,) = stack.records()
        assert record["time_to_first_token_ms"] >= 400


def test_a_worker_that_comes_back_starts_slowly() -> None:
    with Stack(config={"breaker": {"slowstart_s": 60}, **PROBED}) as stack:
        (worker,) = stack.gateway.deployment.workers.values()
        worker.breaker.returned_at = None
        stack.run(stack.sim.stop())
        until(lambda: not worker.ready)
        stack.run(stack.sim.start())
        until(lambda: worker.ready and worker.breaker.returned_at is not None)  # one is set before the other
        assert worker.breaker.share(time.monotonic()) < 0.5
        assert httpx.post(stack.url + "/v1/chat/completions", json=CHAT).status_code == 200


# -- the log at level debug -----------------------------------------------------------------------------------------

SECRET = "canary-51aa"


def steps(stack: Stack) -> list[dict[str, Any]]:
    """What was logged at level debug, without times and probes."""
    stack.gateway.log.flush()
    lines = [line for line in stack.output.lines() if line.get("level") == "debug" and line["event"] != "probe"]
    return [
        {name: value for name, value in line.items() if name not in ("time", "level", "after_ms")} for line in lines
    ]


@pytest.mark.feature("tracing")
def test_at_level_debug_a_request_beyond_its_model_was_read_too() -> None:
    with Stack(({"max_model_len": 16},), {"log": {"level": "debug"}, "health": {"interval_s": 60}}) as stack:
        body = {"model": "m", "prompt": list(range(20))}
        reply = httpx.post(stack.url + "/v1/completions", json=body, headers={"x-request-id": "one"})
        assert (reply.status_code, stack.sim.ledger.received) == (400, 0)
        read = {"event": "request read", "id": "one", "model": "m", "operation": "complete", "stream": False}
        assert steps(stack) == [read]


@pytest.mark.feature("tracing")
def test_at_level_debug_every_step_of_a_request_is_told() -> None:
    config = {"log": {"level": "debug"}, "models": {"m": {"policy": "round_robin"}}, "health": {"interval_s": 60}}
    with Stack(({}, {}), config) as stack:
        first, second = (sim.url for sim in stack.sims)
        body = {"model": "alias", "messages": [{"role": "user", "content": f'sim:{{"text": "{SECRET}"}}'}]}
        headers = {"x-request-id": "one", "authorization": f"Bearer {SECRET}"}
        url = stack.url + "/v1/chat/completions"
        assert httpx.post(url, json=body, headers=headers).status_code == 200
        same = {"id": "one", "model": "m"}
        assert steps(stack) == [
            {"event": "request read", **same, "operation": "chat", "stream": False},
            {"event": "worker chosen", **same, "worker": first, "attempt": 1, "half_open": False},
            {"event": "worker answered", "id": "one", "worker": first, "status": 200},
        ]

        stack.run(stack.sims[1].stop())
        before = len(steps(stack))
        assert httpx.post(url, json=body, headers=headers).status_code == 200
        failed = {"attempt": 1, "code": "upstream_error", "blame": "worker", "again": True}
        assert steps(stack)[before:] == [
            {"event": "request read", **same, "operation": "chat", "stream": False},
            {"event": "worker chosen", **same, "worker": second, "attempt": 1, "half_open": False},
            {"event": "worker failed", "model": "m", "worker": second, "failures": 1},
            {"event": "attempt failed", **same, "worker": second, **failed},
            {"event": "worker chosen", **same, "worker": first, "attempt": 2, "half_open": False},
            {"event": "worker answered", "id": "one", "worker": first, "status": 200},
        ]
        until(lambda: any(line["found"] == "unreachable" for line in stack.events("probe")))
        probes = stack.events("probe")
        assert {(line["model"], line["worker"], line["found"]) for line in probes} >= {
            ("m", first, "200"),
            ("m", second, "200"),
            ("m", second, "unreachable"),
        }
        assert SECRET not in stack.output.getvalue().decode()


@pytest.mark.feature("tracing")
def test_at_level_info_no_step_is_even_put_together() -> None:
    with Stack() as stack:
        watchers = len(stack.gateway.deployment.runtime.way.features)
        changed = stack.config({"log": {"level": "debug"}})
        stack.run(stack.gateway.reload(changed))
        assert len(stack.gateway.deployment.runtime.way.features) == watchers + 1
        assert httpx.post(stack.url + "/v1/chat/completions", json=CHAT).status_code == 200
        assert [step["event"] for step in steps(stack)] == ["request read", "worker chosen", "worker answered"]
        stack.run(stack.gateway.reload(stack.config()))
        assert len(stack.gateway.deployment.runtime.way.features) == watchers


def test_a_configuration_without_a_file() -> None:
    environ = {"DRAGOMAN_LISTEN__PORT": "0"}
    text = "models: {m: {backend: vllm, workers: ['http://127.0.0.1:9']}}"
    assert load_text(text, environ).listen.port == 0


# -- reloads --------------------------------------------------------------------------------------------------------


@pytest.mark.feature("limits")
def test_a_reload_with_many_keys_does_their_work_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines that the loop runs of what knows keys and limits; each key has limits of its own."""
    reading: list[str] = []
    create = httpx.create_ssl_context

    def created(*given: Any, **options: Any) -> ssl.SSLContext:
        reading.append(threading.current_thread().name)
        return create(*given, **options)

    def keyed(count: int) -> dict[str, Any]:
        limits = {"requests": 10**6, "tokens": 10**9, "concurrency": 100}
        return {f"k{one}": {"hash": f"sha256:{one:064x}", "limits": limits} for one in range(count)}

    async def reloaded(stack: Stack, count: int) -> int:
        config = await asyncio.to_thread(stack.config, {"keys": keyed(count)})
        lines = 0

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal lines
            if not re.search(r"gateway/(auth|config|limit)", frame.f_code.co_filename):
                return None
            lines += event == "line"
            return trace

        sys.settrace(trace)
        try:
            await stack.gateway.reload(config)
        finally:
            sys.settrace(None)
        return lines

    with Stack(config={"keys": key("k")[1]}) as stack:
        loop = stack.run(_thread())
        monkeypatch.setattr(httpx, "create_ssl_context", created)
        few, many = stack.run(reloaded(stack, 10)), stack.run(reloaded(stack, 400))
        assert 0 < many < few + 300, "not one line for each key"
        assert reading
        assert loop not in reading, "certificates are read there too"


async def _thread() -> str:
    return threading.current_thread().name
