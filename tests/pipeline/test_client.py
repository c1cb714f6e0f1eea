"""The room for large request bodies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness import Stack, until
from tests.server.raw import Raw, chat, code_of, post

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
BOUNDS = {"listen": {"max_body_bytes": 300_000, "max_bodies_bytes": 400_000}}


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
