"""A key that ends, or loses the model, while its request waits: behind every wait the gateway looks again, and asks no
worker."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from tests.support.clients import DIALECTS, usual
from tests.support.harness import Stack, load_text, until
from tests.support.standins.web import web
from tests.unit.app.asking import CHAT, GONE, key
from tests.unit.dialects.responses.talking import Talk, code_of
from tests.unit.features.test_web_tools import SEARCH, asked, call, tools

BOB, _BOB = key("bob")
EVE, _EVE = key("bob", team="red")
EVE_LATER, _OWN = key("own")
PATH = "/v1/chat/completions"


def bearer(secret: str = BOB) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def expiring(stack: Stack) -> None:
    """Its time is over without any change of the keys."""
    ring = stack.gateway.deployment.keyring
    ring._clock = lambda: time.time() + 7200  # time goes on


def reloaded(stack: Stack, keys: dict[str, Any]) -> None:
    stack.sections["keys"] = keys
    stack.run(stack.gateway.reload(stack.config()))


LOST = "without the model"
CHANGES: dict[str, Callable[[Stack], None]] = {
    "disabled": lambda stack: reloaded(stack, {"bob": {**_BOB["bob"], "disabled": True}, **_OWN}),
    LOST: lambda stack: reloaded(stack, {"bob": {**_BOB["bob"], "models": ["other"]}, **_OWN}),
    "gone": lambda stack: reloaded(stack, _OWN),
    "given to another": lambda stack: reloaded(stack, {**_EVE, **_OWN}),
    "expired": expiring,
}


@contextmanager
def gateway(change: str, **config: Any) -> Iterator[Stack]:
    """A gateway whose one worker runs one request, and a key to which `change` happens."""
    expires = {"expires": datetime.now(UTC) + timedelta(hours=1)} if change == "expired" else {}
    keys = {"bob": {**_BOB["bob"], **expires}, **_OWN}
    models = {"m": {"max_in_flight": 1}, "other": GONE}
    with Stack(({},), {"keys": keys, "models": models, **config}) as stack:
        yield stack


def ask(stack: Stack, secret: str, path: str = PATH, body: Any = CHAT) -> httpx.Response:
    return httpx.post(stack.url + path, json=body, headers=bearer(secret), timeout=60)


@pytest.mark.parametrize("change", CHANGES)
def test_requests_that_wait_for_a_worker_in_every_dialect(change: str) -> None:
    ways = [usual(name, stream=None) for name in DIALECTS]
    with gateway(change) as stack, ThreadPoolExecutor(len(ways) + 1) as threads:
        stack.sim.fault("stall", 1)
        first = threads.submit(ask, stack, EVE_LATER)
        until(lambda: stack.sim.ledger.running == 1)
        waiting = [threads.submit(ask, stack, BOB, way.path("m"), {**way.body(), "model": "m"}) for way in ways]
        pool = stack.gateway.deployment.pools["m"]
        until(lambda: pool.waiting == len(ways))
        CHANGES[change](stack)
        stack.loop.call_soon_threadsafe(stack.sim.go_on)
        assert first.result().status_code == 200
        found = [(str(way), one.result().status_code) for way, one in zip(ways, waiting, strict=True)]
        new = [ask(stack, BOB, way.path("m"), {**way.body(), "model": "m"}).status_code for way in ways]
        assert found == [(str(way), status) for way, status in zip(ways, new, strict=True)]
        assert set(new) == ({404, 400} if change == LOST else {401, 403})
        assert stack.sim.ledger.completed == 1, "no worker was asked"
        assert ask(stack, EVE_LATER).status_code == 200, "and the worker has its place back"


@pytest.mark.parametrize("change", CHANGES)
def test_a_body_that_comes_slowly(change: str) -> None:
    with gateway(change) as stack:
        body = json.dumps(CHAT).encode()
        head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {BOB}\r\ncontent-type: application/json\r\n"
        at = urlsplit(stack.url)
        with socket.create_connection((at.hostname or "", at.port or 0), timeout=30) as client:
            client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body[:9])
            until(lambda: len(stack.gateway.deployment.runtime.active.requests) == 1)
            CHANGES[change](stack)
            client.sendall(body[9:])
            status = b"404" if change == LOST else b"401"
            assert client.recv(1000).startswith(b"HTTP/1.1 " + status)
        assert stack.sim.ledger.completed == 0


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("stream", [False, True])
def test_the_rounds_of_a_tool(change: str, stream: bool) -> None:
    with web() as service, gateway(change, **tools(service)) as stack, ThreadPoolExecutor(1) as threads:
        service.held.clear()
        body = asked({"tool_calls": [call("web_search", query="x")]}, {"text": "done"}, tools=(SEARCH,), stream=stream)
        waiting = threads.submit(ask, stack, BOB, "/v1/messages", body)
        until(lambda: stack.sim.ledger.completed == 1)
        CHANGES[change](stack)
        service.held.set()
        reply = waiting.result()
        assert ("not_found_error" if change == LOST else "authentication_error") in reply.text
        assert stack.sim.ledger.completed == 1


@pytest.mark.parametrize("change", CHANGES)
def test_a_message_that_waits_on_a_web_socket(change: str) -> None:
    with gateway(change, dialects={"responses": {}}) as stack, Talk(stack, **bearer()) as talk:
        stack.sim.fault("stall", 1)
        talk.create(input="one")
        until(lambda: stack.sim.ledger.running == 1)
        talk.create(input="two")
        CHANGES[change](stack)
        stack.loop.call_soon_threadsafe(stack.sim.go_on)
        talk.heard()
        assert code_of(talk.heard()[-1])
        assert stack.sim.ledger.completed == 1


def test_a_key_that_stays_is_not_in_the_way() -> None:
    """Another key changes meanwhile, and the model has another name, by which the key may use it."""
    with gateway("disabled") as stack, ThreadPoolExecutor(2) as threads:
        stack.sim.fault("stall", 1)
        first = threads.submit(ask, stack, EVE_LATER)
        until(lambda: stack.sim.ledger.running == 1)
        second = threads.submit(ask, stack, BOB)
        pool = stack.gateway.deployment.pools["m"]
        until(lambda: pool.waiting == 1)
        sections = json.loads(stack.config().model_dump_json(exclude_defaults=True))
        models = {"other": GONE, "new": {**sections["models"]["m"], "aliases": ["m"]}}
        sections |= {"models": models, "keys": {"bob": {**_BOB["bob"], "models": ["new"]}}}
        stack.run(stack.gateway.reload(load_text(yaml.safe_dump(sections))))
        stack.loop.call_soon_threadsafe(stack.sim.go_on)
        assert [one.result().status_code for one in (first, second)] == [200, 200]
