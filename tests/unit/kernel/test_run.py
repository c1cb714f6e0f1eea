"""One request to its end, whatever goes wrong on the way."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import socket
from collections.abc import Callable
from itertools import product
from typing import Any

import httpx
import pytest

from gateway import dialects
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Request, Response
from gateway.core.messages import Op
from gateway.kernel.call import Call
from gateway.translation.lanes import EventLane
from tests.support.clients import GENERATING, REQUESTS, usual
from tests.support.harness import Stack
from tests.support.sampled import sampled
from tests.unit.kernel.asking import chat, plain_asgi, raw_request, read_whole, scripted

PATHS = {name: path for name, (path, _) in REQUESTS.items()}


def asking(dialect: str, text: str = "hi", **members: Any) -> dict[str, Any]:
    """The body of the dialect's usual chat, with what it must have."""
    return {"model": "m", **usual(dialect).body(text, **{"stream": False, "max_tokens": 100, **members})}


def test_every_dialect_is_here() -> None:
    assert PATHS.keys() == set(GENERATING)


# -- whatever fails while an error is being told --------------------------------------------------------------------


def raising(refuse: Any) -> Any:
    def broken(self: Any, error: GatewayError, request: Request | None, op: Op | None) -> Any:
        if error.kind is not Kind.INTERNAL:
            raise OverflowError("cannot convert float infinity to integer")
        return refuse(self, error, request, op)

    return broken


def spoiling(spoil: Callable[[Response], None]) -> Callable[[Any], Any]:
    def around(refuse: Any) -> Any:
        def broken(self: Any, error: GatewayError, request: Request | None, op: Op | None) -> Any:
            found = refuse(self, error, request, op)
            if error.kind is not Kind.INTERNAL:
                spoil(found[0] if isinstance(found, tuple) else found)
            return found

        return broken

    return around


def split_header(response: Response) -> None:
    response.headers.append((b"x-odd", b"a\r\nx-injected: b"))


def odd_status(response: Response) -> None:
    response.status = 999


def refusing(made: Any) -> Callable[..., Any]:
    """The method `refuse` of a dialect's class, which some make of a function without self."""
    refuse = made.refuse
    static = isinstance(inspect.getattr_static(made, "refuse"), staticmethod)
    return (lambda self, *given: refuse(*given)) if static else refuse


@pytest.mark.parametrize(
    ("dialect", "broken", "plain"),
    [
        *((dialect, raising, False) for dialect in PATHS),
        ("openai", raising, True),
        ("openai", spoiling(split_header), False),
        ("openai", spoiling(odd_status), False),
    ],
)
def test_an_error_that_cannot_be_told_is_the_dialects_own_500(
    monkeypatch: pytest.MonkeyPatch, dialect: str, broken: Callable[[Any], Any], plain: bool
) -> None:
    made = dialects.REGISTRY[dialect]
    monkeypatch.setattr(made, "refuse", broken(refusing(made)))
    with Stack(wrap=plain_asgi if plain else lambda app: app) as stack:
        reply = httpx.post(stack.url + PATHS[dialect], json={"model": "m", "messages": 5})
        assert reply.status_code == 500
        assert "the gateway failed to handle this request" in json.dumps(reply.json())
        assert "x-injected" not in reply.headers
        assert reply.headers["x-request-id"] == stack.record()["id"]
        assert (stack.record()["status"], stack.record()["outcome"]) == (500, "failed")
        assert len(stack.events("bug")) == 1
        assert httpx.post(stack.url + PATHS[dialect], json=asking(dialect)).status_code == 200


@pytest.mark.parametrize("when", ["before", "2"])
def test_an_error_that_a_stream_cannot_tell_cuts_it(
    wrap: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The head of a 200 is out, so that no status can say it: what comes must not look like an end."""

    def broken(self: Any, error: GatewayError) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr(EventLane, "fail", broken)
    config = {"relay": {"keepalive_s": 0.05}, "deadlines": {"first_byte_s": 0.3, "idle_s": 0.3}}
    with Stack(wrap=wrap, config=config) as stack:
        body = chat(scripted(text="a b c", fault=f"stall@{when}"), stream=True)
        received = read_whole(raw_request(stack, body, PATHS["friendli"], b"connection: close\r\n"))
        assert received.startswith(b"HTTP/1.1 200 ")
        assert b"[DONE]" not in received
        assert not received.endswith(b"0\r\n\r\n")
        record = stack.record()
        assert (record["outcome"], record["code"]) == ("failed", "internal_error")
        assert len(stack.events("bug")) == 1


class Slow:
    """A plain ASGI client whose server keeps `send` waiting until `free`, and that leaves on `leaving`."""

    def __init__(self) -> None:
        self.asked = [{"type": "http.request", "body": b"{}", "more_body": False}]
        self.leaving, self.blocked, self.free = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.sent: list[Any] = []

    async def receive(self) -> Any:
        if self.asked:
            return self.asked.pop()
        await self.leaving.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.blocked.set()
        await self.free.wait()
        self.sent.append(message)

    async def ask(self, app: Any) -> None:
        scope = {
            "type": "http",
            "method": "POST",
            "path": PATHS["openai"],
            "raw_path": PATHS["openai"].encode(),
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }
        await app(scope, self.receive, self.send)


def test_who_leaves_while_an_error_is_told_has_left() -> None:
    """A server may keep a slow client's error waiting: the request ends all the same, without a bug."""

    async def leave(app: Any) -> None:
        slow = Slow()
        asking = asyncio.create_task(slow.ask(app))
        await slow.blocked.wait()
        slow.leaving.set()
        await asking

    with Stack() as stack:
        stack.run(leave(stack.gateway))
        assert stack.record()["outcome"] == "cancelled"
        assert stack.events("bug") == []


def test_an_error_that_is_being_told_is_not_interrupted() -> None:
    async def interrupt(stack: Stack) -> list[Any]:
        slow = Slow()
        asking = asyncio.create_task(slow.ask(stack.gateway))
        await slow.blocked.wait()
        (run,) = stack.gateway.deployment.runtime.active.requests
        run.interrupt(GatewayError(Kind.DRAINING, "the gateway is shutting down"))
        slow.free.set()
        await asking
        return slow.sent

    with Stack() as stack:
        head, body = stack.run(interrupt(stack))
        assert (head["status"], body["type"]) == (400, "http.response.body")
        assert stack.record()["outcome"] == "refused"


# -- usage ----------------------------------------------------------------------------------------------------------


def until_gone(stack: Stack, client: socket.socket) -> dict[str, Any]:
    """The record of the request whose client leaves now."""
    client.close()
    stack.run(stack.sim.ledger.wait(aborted=1))
    stack.run(stack.gateway.deployment.runtime.active.empty(20))
    return stack.record()


@pytest.mark.feature("limits")
@pytest.mark.parametrize("when", ["before", "headers"])
def test_a_stream_whose_client_left_before_its_first_token_used_its_prompt(
    wrap: Callable[[Any], Any], when: str
) -> None:
    """Whether or not the worker had begun to answer. So the limits give the reserved output back."""
    limits = [{"name": "tokens", "kind": "tokens", "limit": 1000}]
    with Stack(wrap=wrap, config={"limits": limits}) as stack:
        body = chat(scripted(text="a", fault=f"stall@{when}"), stream=True, max_tokens=900)
        client = raw_request(stack, body)
        stack.run(stack.sim.ledger.wait(running=1))
        record = until_gone(stack, client)
        assert (record["outcome"], record["attempts"]) == ("cancelled", 1)
        assert record["usage"]["output"] == 0
        assert 0 < record["usage"]["input"] < 100
        assert record["usage"]["source"] == "estimated"
        again = httpx.post(stack.url + PATHS["openai"], json=chat(max_tokens=800))
        assert again.status_code == 200, again.text


@pytest.mark.feature("limits")
def test_nobody_knows_what_a_plain_reply_used_whose_client_left(wrap: Callable[[Any], Any]) -> None:
    limits = [{"name": "tokens", "kind": "tokens", "limit": 1000}]
    with Stack(wrap=wrap, config={"limits": limits}) as stack:
        client = raw_request(stack, chat(scripted(text="a", fault="stall@before"), max_tokens=900))
        stack.run(stack.sim.ledger.wait(running=1))
        assert until_gone(stack, client)["usage"] is None
        assert httpx.post(stack.url + PATHS["openai"], json=chat(max_tokens=800)).status_code == 429


@pytest.mark.feature("limits")
@pytest.mark.parametrize("fault", ["", "eof@2", "reset@2", "status:500", "stall:0.05@before"])
@pytest.mark.parametrize(("dialect", "stream"), sampled(product(PATHS, [True, False]), 4, lambda case: case[0]))
def test_usage_is_told_once_the_same_to_limits_and_record(
    monkeypatch: pytest.MonkeyPatch, dialect: str, stream: bool, fault: str
) -> None:
    """However often it is asked for: a stream's when it is complete, and everybody's at the end."""
    told: list[Any] = []
    used = Call.used

    def noting(self: Call) -> Any:
        told.append(used(self))
        return told[-1]

    monkeypatch.setattr(Call, "used", noting)
    config = {"limits": [{"name": "slots", "kind": "concurrency", "limit": 5}]}
    with Stack(config=config) as stack:
        body = asking(dialect, scripted(text="a b c", **({"fault": fault} if fault else {})), stream=stream)
        with contextlib.suppress(httpx.RemoteProtocolError):
            httpx.post(stack.url + PATHS[dialect], json=body)
        stack.run(stack.gateway.deployment.runtime.active.empty(20))
        assert told
        assert told.count(told[0]) == len(told)
        found = stack.record()["usage"]
        assert (found is None) == (told[0] is None)
        if found is not None:
            assert (found["input"], found["output"]) == (told[0].input, told[0].output)
