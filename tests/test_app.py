"""The composition: what is served where, who may ask, and what a reload keeps."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from gateway.app import KNOWN, active_dialects, paths, route_table
from gateway.auth import new_key
from gateway.config import Config
from tests.harness import Stack, load_text

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Waits for what happens in the stack's thread and announces itself in no other way."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack() as running:
        yield running


def key(name: str, **options: Any) -> tuple[str, dict[str, Any]]:
    """A new key, and its part of the configuration."""
    import yaml

    secret, entry = new_key(name)
    loaded = yaml.safe_load(entry)
    loaded[name] |= options
    return secret, loaded


# -- routes ---------------------------------------------------------------------------------------------------------


def test_the_route_table_is_what_is_served(stack: Stack) -> None:
    """No path is served that is not listed, and every listed one is: HEAD is no method of any dialect's, and a 405
    tells which methods are."""
    config = stack.gateway.state.config
    listed: dict[str, set[str]] = {}
    for line in route_table(config):
        listed.setdefault(line.path, set()).add(line.method)
    served = {getattr(route, "path", "") for route in stack.gateway.state.router().routes}
    own = {"/livez", "/readyz", "/metrics"}
    assert set(listed) == served | own
    with httpx.Client(base_url=stack.url) as client:
        for path, methods in listed.items():
            if path in own:
                assert client.get(path).status_code == 200
                continue
            concrete = path.replace("{model:path}", "m").replace("{name:path}", "m")
            refused = client.delete(concrete)
            assert refused.status_code == 405, path
            assert set(refused.headers["allow"].split(", ")) == methods
            for method in methods:
                reply = client.request(method, concrete, json={} if method == "POST" else None)
                assert reply.status_code not in (404, 405), (method, path)


def test_every_dialect_is_listed() -> None:
    assert {line.dialect for line in route_table(Config())} == {*KNOWN.dialects, "-"}


def test_a_disabled_dialect_is_not_served() -> None:
    config = {"dialects": {name: {"enabled": False} for name in KNOWN.dialects if name != "openai"}}
    with Stack(config=config) as stack:
        assert {line.dialect for line in route_table(stack.gateway.state.config)} == {"openai", "-"}
        assert httpx.post(stack.url + "/invocations", json={}).json()["error"]["code"] == "unknown_path"


def fallbacks() -> list[tuple[str, str]]:
    return [(prefix.rstrip("/"), dialect.name) for dialect in active_dialects(Config()) for prefix in dialect.prefixes]


@pytest.mark.parametrize(("prefix", "dialect"), fallbacks())
@pytest.mark.parametrize("rest", ["/nothing/here", "/v1/chat/completions/", "/%2e%2e/v1/models", ""])
def test_an_unknown_path_is_refused_in_the_dialect_of_its_prefix(
    stack: Stack, prefix: str, dialect: str, rest: str
) -> None:
    (speaker,) = [one for one in active_dialects(Config()) if one.name == dialect]
    if (prefix + rest or "/") in paths(speaker):
        pytest.skip("this path is one of its own")
    reply = httpx.get(stack.url + (prefix + rest or "/"))
    assert reply.status_code == 404
    assert reply.content
    record = stack.records()[-1]
    assert (record["dialect"], record["code"], record["status"]) == (dialect, "unknown_path", 404)


def test_a_prefix_is_a_whole_segment(stack: Stack) -> None:
    assert httpx.get(stack.url + "/openaiv1/models").status_code == 404
    assert httpx.get(stack.url + "/ollamachat/sse").status_code == 404
    assert stack.records()[-1]["dialect"] == "openai"


# -- signs of life --------------------------------------------------------------------------------------------------


def test_livez_touches_nothing() -> None:
    """No worker, no record, no metric, no key."""
    with Stack((), config={"models": {"x": GONE}, "keys": key("k")[1]}) as stack:
        before = stack.gateway.metrics.page()
        reply = httpx.get(stack.url + "/livez")
        assert (reply.status_code, reply.text) == (200, "alive\n")
        assert httpx.get(stack.url + "/readyz").text == "no model has a ready worker\n"
        assert stack.records() == []
        assert _counts(stack.gateway.metrics.page()) == _counts(before)


GONE = {"backend": "vllm", "workers": ["http://127.0.0.1:9"]}


def _counts(page: bytes) -> list[bytes]:
    return [line for line in page.splitlines() if line.startswith(b"dragoman_request")]


# -- keys -----------------------------------------------------------------------------------------------------------


def test_without_a_key_no_body_is_read() -> None:
    with Stack(config={"keys": key("k")[1]}) as stack:
        for path in ("/v1/chat/completions", "/nothing", "/v1/models"):
            with socket.create_connection(("127.0.0.1", int(stack.url.rsplit(":", 1)[1]))) as client:
                client.settimeout(5)
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
                (reply.status_code, reply.text.replace(name, "NAME"), dict(reply.headers) | {"x-request-id": ""})
                for reply in found
            ]

        absent = answers("absent")
        assert [status for status, _, _ in absent] == [404] * 4
        assert answers("hidden") == absent
        assert answers("veiled") == absent
        assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["m", "alias"]
        assert client.post("/v1/chat/completions", json=CHAT).status_code == 200


def test_a_key_speaks_only_its_dialects() -> None:
    secret, entry = key("k", dialects=["ollama"])
    with Stack(config={"keys": entry}) as stack:
        headers = {"authorization": f"Bearer {secret}"}
        refused = httpx.post(stack.url + "/v1/chat/completions", json=CHAT, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "dialect_not_allowed")
        assert stack.sim.ledger.received == 0


def test_a_higher_priority_waits_less() -> None:
    (low, one), (high, other) = key("low"), key("high", priority=5)
    config = {"keys": {**one, **other}, "models": {"m": {"max_in_flight": 1}}}
    with Stack(config=config) as stack:
        pool = stack.gateway.state.pools["m"]

        async def all_of_them() -> list[str]:
            order: list[str] = []
            async with httpx.AsyncClient(base_url=stack.url, timeout=10) as client:

                async def ask(secret: str, text: str) -> None:
                    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
                    headers = {"authorization": f"Bearer {secret}"}
                    reply = await client.post("/v1/chat/completions", json=body, headers=headers)
                    order.append(json.loads(reply.text)["choices"][0]["message"]["content"])

                def say(text: str, fault: str = "") -> str:
                    return "sim:" + json.dumps({"text": text, "fault": fault})

                async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
                    tasks.create_task(ask(low, say("first", "stall:0.3@before")))
                    for secret, text, waiting in ((low, "low", 1), (high, "high", 2)):
                        await stack.sim.ledger.wait(running=1)
                        tasks.create_task(ask(secret, say(text)))
                        for _ in iter(lambda waiting=waiting: pool.waiting == waiting, True):  # type: ignore[misc]
                            await asyncio.sleep(0)
            return order

        assert stack.run(all_of_them(), 15) == ["first", "high", "low"]


# -- workers -------------------------------------------------------------------------------------------------------


def test_a_bug_of_ours_does_not_keep_a_worker_from_its_next_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError

    with Stack() as stack:
        (worker,) = stack.gateway.state.workers.values()
        worker.breaker.open_until = 0.001  # was out, and may be tried again
        with monkeypatch.context() as patched:
            patched.setattr("gateway.wire.openai_relay.Relaying.whole", broken)
            assert httpx.post(stack.url + "/v1/chat/completions", json=CHAT).status_code == 500
        assert httpx.post(stack.url + "/v1/chat/completions", json=CHAT).status_code == 200
        assert not worker.breaker.ejected


def test_a_stream_on_trial_keeps_nobody_out_once_it_has_begun() -> None:
    with Stack() as stack:
        (worker,) = stack.gateway.state.workers.values()
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
        assert record["ttft_ms"] >= 400


def test_a_worker_that_comes_back_starts_slowly() -> None:
    with Stack(config={"breaker": {"slowstart_s": 60}}) as stack:
        (worker,) = stack.gateway.state.workers.values()
        worker.breaker.returned_at = None
        stack.run(stack.sim.stop())
        until(lambda: not worker.ready)
        stack.run(stack.sim.start())
        until(lambda: worker.ready)
        assert worker.breaker.share(time.monotonic()) < 0.5
        assert httpx.post(stack.url + "/v1/chat/completions", json=CHAT).status_code == 200


# -- the log at level debug -----------------------------------------------------------------------------------------

SECRET = "canary-51aa"


def steps(stack: Stack) -> list[dict[str, Any]]:
    """What was logged at level debug, without times and probes."""
    stack.gateway.log.flush()
    lines = [line for line in stack.output.lines() if line.get("level") == "debug" and line["event"] != "probe"]
    return [{name: value for name, value in line.items() if name not in ("time", "level", "ms")} for line in lines]


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
            {"event": "worker chosen", **same, "worker": first, "attempt": 1, "on_trial": False},
            {"event": "worker answered", "id": "one", "worker": first, "status": 200},
        ]

        stack.run(stack.sims[1].stop())
        before = len(steps(stack))
        assert httpx.post(url, json=body, headers=headers).status_code == 200
        failed = {"attempt": 1, "code": "upstream_error", "blame": "worker", "upstream": None, "again": True}
        assert steps(stack)[before:] == [
            {"event": "request read", **same, "operation": "chat", "stream": False},
            {"event": "worker chosen", **same, "worker": second, "attempt": 1, "on_trial": False},
            {"event": "worker failed", "model": "m", "worker": second, "failures": 1},
            {"event": "attempt failed", **same, "worker": second, **failed},
            {"event": "worker chosen", **same, "worker": first, "attempt": 2, "on_trial": False},
            {"event": "worker answered", "id": "one", "worker": first, "status": 200},
        ]
        until(lambda: any(line["found"] == "ConnectError" for line in stack.events("probe")))
        probes = stack.events("probe")
        assert {(line["model"], line["worker"], line["found"]) for line in probes} >= {
            ("m", first, "200"),
            ("m", second, "200"),
            ("m", second, "ConnectError"),
        }
        assert SECRET not in stack.output.getvalue().decode()


def test_at_level_info_no_step_is_even_put_together() -> None:
    with Stack() as stack:
        assert stack.gateway.state.hub.trace is None
        changed = stack.config({"log": {"level": "debug"}})
        stack.run(stack.gateway.reload(changed))
        assert httpx.post(stack.url + "/v1/chat/completions", json=CHAT).status_code == 200
        assert [step["event"] for step in steps(stack)] == ["request read", "worker chosen", "worker answered"]
        stack.run(stack.gateway.reload(stack.config()))
        assert stack.gateway.state.hub.trace is None


# -- reload ---------------------------------------------------------------------------------------------------------


def test_workers_that_stay_keep_their_record() -> None:
    with Stack(({}, {}), config={"breaker": {"failures": 3}}) as stack:
        first, second = stack.gateway.state.workers.values()
        first.breaker.failures = 2
        changed = stack.config(
            {"models": {"m": {"workers": [first.address], "max_in_flight": 7}}, "breaker": {"failures": 9}}
        )
        stack.run(stack.gateway.reload(changed))
        (worker,) = stack.gateway.state.workers.values()
        assert worker is first
        assert worker.breaker.failures == 2
        assert worker.breaker.policy.failures == 9
        assert worker.max_in_flight == 7
        assert worker.ready
        # The old configuration is let go of.
        until(lambda: len(stack.gateway._states) == 1)
        assert len(first.on_free) == 1
        assert not second.on_free


def test_many_reloads_at_once_leave_one_configuration(stack: Stack) -> None:
    async def storm() -> None:
        await asyncio.gather(*(stack.gateway.reload(stack.config()) for _ in range(10)))

    stack.run(storm())
    until(lambda: len(stack.gateway._states) == 1)
    assert httpx.post(stack.url + "/v1/chat/completions", json=CHAT).status_code == 200
    health = [task for task in _tasks(stack) if "Health._watch" in repr(task)]
    assert len(health) == 1, "one probe for one worker"


def _tasks(stack: Stack) -> list[Any]:
    async def found() -> list[Any]:
        return list(asyncio.all_tasks())

    return stack.run(found())


def test_who_waited_under_the_old_configuration_is_served() -> None:
    with Stack(config={"models": {"m": {"max_in_flight": 1}}}) as stack:

        async def go() -> list[int]:
            async with httpx.AsyncClient(base_url=stack.url, timeout=10) as client, asyncio.timeout(10):

                async def ask(fault: str) -> int:
                    content = "sim:" + json.dumps({"text": "a", "fault": fault})
                    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
                    return (await client.post("/v1/chat/completions", json=body)).status_code

                old = stack.gateway.state.pools["m"]
                running = asyncio.create_task(ask("stall:0.3@before"))
                await stack.sim.ledger.wait(running=1)
                waiting = asyncio.create_task(ask(""))
                for _ in iter(lambda: old.waiting == 1, True):
                    await asyncio.sleep(0)
                await stack.gateway.reload(stack.config())
                new = stack.gateway.state.pools["m"]
                assert new is not old
                newer = asyncio.create_task(ask(""))
                for _ in iter(lambda: new.waiting == 1, True):
                    await asyncio.sleep(0)
                return list(await asyncio.gather(running, waiting, newer))

        assert stack.run(go(), 15) == [200, 200, 200]
        until(lambda: all(worker.in_flight == 0 for worker in stack.gateway.state.workers.values()))


def test_keys_change_with_a_reload() -> None:
    secret, entry = key("k")
    with Stack() as stack:
        assert httpx.get(stack.url + "/v1/models").status_code == 200
        stack.run(stack.gateway.reload(stack.config({"keys": entry})))
        assert httpx.get(stack.url + "/v1/models").status_code == 401
        headers = {"authorization": f"Bearer {secret}"}
        assert httpx.get(stack.url + "/v1/models", headers=headers).status_code == 200


def test_a_configuration_without_a_file() -> None:
    environ = {"DRAGOMAN_LISTEN__PORT": "0"}
    text = "models: {m: {backend: vllm, workers: ['http://127.0.0.1:9']}}"
    assert load_text(text, environ).listen.port == 0
