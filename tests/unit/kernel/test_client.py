"""The room for large request bodies, and a client by plain ASGI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.kernel.client import AsgiClient, read_body
from tests.support.harness import Stack, until
from tests.unit.server.raw import Raw, chat, code_of, post

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
BOUNDS = {"listen": {"max_body_bytes": 300_000, "max_bodies_bytes": 400_000, "caller_share": 1}}


def plain(app: Any) -> Any:
    """`app` as any ASGI server would run it."""

    async def run(scope: Any, receive: Any, send: Any) -> None:
        scope.pop("extensions", None)
        await app(scope, receive, send)

    return run


@pytest.fixture(params=["direct", "plain ASGI"])
def crowded(request: pytest.FixtureRequest) -> Iterator[Stack]:
    with Stack(config=BOUNDS, wrap=plain if request.param == "plain ASGI" else lambda app: app) as stack:
        yield stack


def held(stack: Stack) -> int:
    return stack.gateway.deployment.runtime.body_budget.reserved


def test_what_has_no_room_is_refused_by_its_length_alone(crowded: Stack) -> None:
    content = json.dumps(chat()).encode() + b" " * 250_000
    with Raw(crowded) as one, Raw(crowded) as other:
        one.send(HEAD % len(content))
        until(lambda: held(crowded) == len(content))
        other.send(HEAD % 200_000)
        status, headers, body = other.response()
        assert (status, code_of(body), headers[b"retry-after"]) == (503, "no_room_for_body", b"1")
        assert other.send(b" " * 200_000 + post(chat())).response()[0] == 200, "small ones need no room"
        assert one.send(content).response()[0] == 200
        until(lambda: held(crowded) == 0)
        assert other.send(HEAD % len(content) + content).response()[0] == 200


def test_a_body_without_a_length_takes_room_as_it_comes(crowded: Stack) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    chunk = b"186a0\r\n" + b" " * 100_000 + b"\r\n"
    with Raw(crowded) as one, Raw(crowded) as other:
        one.send(HEAD % 250_000)
        until(lambda: held(crowded) == 250_000)
        other.send(head + chunk)
        until(lambda: held(crowded) > 250_000)
        status, _, body = other.send(chunk).response()
        assert (status, code_of(body)) == (503, "no_room_for_body")
        until(lambda: held(crowded) == 250_000)
    until(lambda: held(crowded) == 0)  # who leaves gives back, too


def test_room_is_the_same_after_a_reload() -> None:
    with Stack(config=BOUNDS) as stack:
        with Raw(stack) as one:
            one.send(HEAD % 250_000)
            until(lambda: held(stack) == 250_000)
            stack.run(stack.gateway.reload(stack.config({"listen": {**BOUNDS["listen"], "max_bodies_bytes": 500_000}})))
            body_budget = stack.gateway.deployment.runtime.body_budget
            assert (body_budget.reserved, body_budget.limit) == (250_000, 500_000)
        until(lambda: body_budget.reserved == 0)


# -- plain ASGI -----------------------------------------------------------------------------------------------------

PIECE = {"type": "http.request", "body": b"a", "more_body": True}
LAST = {"type": "http.request", "body": b"b"}


async def refused(size: int) -> None:
    raise AssertionError("so few bytes need no room")


def asgi(*messages: dict[str, Any], sent: list[Any] | None = None) -> AsgiClient:
    left = iter(messages)

    async def receive() -> Any:
        return next(left)

    async def send(message: Any) -> None:
        if sent is not None:
            sent.append((message["body"], message["more_body"]))

    return AsgiClient(receive, send)


@pytest.mark.parametrize(
    ("messages", "body"), [((LAST,), b"b"), ((PIECE, LAST), b"ab"), ((PIECE, PIECE, LAST), b"aab")]
)
async def test_a_body_is_whole_with_the_message_that_announces_no_more(messages: Any, body: bytes) -> None:
    assert await read_body(asgi(*messages), [], 100, refused) == body


@pytest.mark.parametrize("before", [(), (PIECE,)])
async def test_a_client_may_leave_before_its_body_is_whole(before: Any) -> None:
    client = asgi(*before, {"type": "http.disconnect"})
    with pytest.raises(GatewayError) as raised:
        await read_body(client, [], 100, refused)
    assert (raised.value.kind, client.gone) == (Kind.CLIENT_GONE, True)


async def test_a_cut_stream_has_all_that_was_written() -> None:
    sent: list[Any] = []
    client = asgi(sent=sent)
    client.write(b"first ")
    await client.cut(b"last")
    assert sent == [(b"first ", True), (b"last", True)]


def test_the_task_of_a_client_that_left_is_cancelled_no_more() -> None:
    """Another ASGI application around the gateway's may go on in that task."""
    counts: list[int] = []

    def around(app: Any) -> Any:
        async def inside(scope: Any, receive: Any, send: Any) -> None:
            await plain(app)(scope, receive, send)
            task = asyncio.current_task()
            assert task is not None
            counts.append(task.cancelling())

        async def run(scope: Any, receive: Any, send: Any) -> None:
            await asyncio.create_task(inside(scope, receive, send))

        return run

    with Stack(wrap=around) as stack:
        stack.sim.fault("stall@before")
        with Raw(stack) as one:
            one.send(post(chat()))
            until(lambda: bool(stack.sim.ledger.running))
        until(lambda: bool(counts))
        assert counts == [0]
