"""How a request came to its worker: in the reply's headers for those that ask, and in every record."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.harness import Stack

ASKED = {"x-dragoman-explain": "1"}
NAMES = {f"x-dragoman-{name}" for name in ("worker", "attempts", "queue-ms", "overhead-ms", "picked")}


def post(stack: Stack, stream: bool = False, headers: dict[str, str] | None = None) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello " * 300}], "stream": stream}
    return httpx.post(stack.url + "/v1/chat/completions", json=body, headers=headers)


def told(reply: httpx.Response) -> set[str]:
    return NAMES & set(reply.headers)


@pytest.mark.parametrize("stream", [False, True])
def test_who_asks_is_told(stream: bool) -> None:
    with Stack(({}, {})) as stack:
        assert not told(post(stack, stream))
        reply = post(stack, stream, ASKED)
        assert told(reply) == NAMES
        record = stack.records()[-1]
    assert reply.headers["x-dragoman-worker"] == record["worker"]
    assert reply.headers["x-dragoman-attempts"] == "1"
    assert reply.headers["x-dragoman-picked"] == record["picked"]
    assert record["picked"].startswith("prefix;why=")
    assert 0 <= float(reply.headers["x-dragoman-overhead-ms"]) <= record["duration_ms"]
    assert record["overhead_ms"] == pytest.approx(
        record["duration_ms"] - record["queue_ms"] - record["upstream_ms"], abs=0.01
    )


def test_errors_say_it_too() -> None:
    with Stack(({"fault": "status:500"}, {"fault": "status:500"})) as stack:
        reply = post(stack, headers=ASKED)
    assert reply.status_code >= 500
    assert reply.headers["x-dragoman-attempts"] == "2"
    assert told(reply) == NAMES


@pytest.mark.parametrize(("mode", "asks", "answers"), [("always", {}, NAMES), ("never", ASKED, set())])
def test_the_configuration_decides(mode: str, asks: dict[str, str], answers: set[str]) -> None:
    config: dict[str, Any] = {"routing": {"explain": mode}}
    with Stack(config=config) as stack:
        reply = post(stack, headers=asks)
    assert told(reply) == answers
    if answers:
        assert reply.headers["x-dragoman-picked"] == "only"


def test_a_session_of_a_client_stays_at_its_worker() -> None:
    with Stack(({}, {}, {})) as stack:
        for header in ("X-Claude-Code-Session-Id", "session-id", "x-session-id"):
            replies = [post(stack, headers={**ASKED, header: "one"}) for _ in range(3)]
            assert {reply.headers["x-dragoman-picked"].split(";")[1] for reply in replies} == {"why=session"}
            assert len({reply.headers["x-dragoman-worker"] for reply in replies}) == 1


def test_no_header_where_no_worker_was_asked() -> None:
    with Stack() as stack:
        reply = httpx.post(stack.url + "/v1/chat/completions", json={"model": "other", "messages": []}, headers=ASKED)
        assert reply.status_code in (400, 404)
        assert not told(reply)
        assert stack.records()[-1]["picked"] is None
