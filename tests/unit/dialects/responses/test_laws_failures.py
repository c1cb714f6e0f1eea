"""Laws 9 to 11: failures before and within a reply, and silence."""

from __future__ import annotations

import json

import httpx
import pytest

from gateway.config import Config
from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Delta, Event, Failed, PartEnd, PartStart, Start
from tests.support.harness import Stack, begun_stream
from tests.unit.dialects.responses.asking import DIALECT, body, frames, kinds, read, scripted, stream_of, waited_twice


@pytest.mark.parametrize("stream", [False, True])
def test_law_9_before_the_first_output_a_failure_is_a_status(client: httpx.Client, stream: bool) -> None:
    for members, status, code in (
        ({"model": "none"}, 404, "model_not_found"),
        ({"temperature": 9}, 400, "invalid_value"),
        (scripted(fault="status:500"), 502, "upstream_error"),
        ({"input": "word " * 20_000}, 400, "context_length_exceeded"),
        ({"tools": [{"type": "function"}]}, 400, "missing_parameter"),
    ):
        refused = client.post("/v1/responses", json={**body(), **members, "stream": stream})
        assert refused.status_code == status, refused.text
        error = refused.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == code
        assert error["message"]


def test_law_9_every_429_says_when() -> None:
    config = {"limits": [{"name": "few", "kind": "requests", "limit": 1, "per_s": 3600}]}
    with Stack(config=config) as stack:
        replies = [httpx.post(stack.url + "/v1/responses", json=body()) for _ in range(2)]
    assert [reply.status_code for reply in replies] == [200, 429]
    assert int(replies[1].headers["retry-after"]) > 0


def test_law_9_what_is_refused_is_named_as_its_client_knows_it() -> None:
    names = {"messages.3.content.0": "input", "response_format": "text.format", "max_tokens": "max_output_tokens"}
    for param, own in names.items():
        refused = GatewayError(Kind.UNSUPPORTED, f"'{param}' cannot be", param=param)
        error = json.loads(DIALECT.refuse(refused, None, None)[0].body)["error"]
        assert error["param"].startswith(own)
        assert own in error["message"]


@pytest.mark.parametrize("fault", ["reset@3", "eof@3", "fin@3"])
def test_law_10_a_stream_that_stops_fails_twice_and_ends_in_order(fault: str) -> None:
    asked = scripted(stream=True, text="Hello there, how are you?", fault=fault)
    with Stack(workers=({"itl_ms": 20},)) as stack, httpx.Client(base_url=stack.url) as client:
        error, failed = frames(client.post("/v1/responses", json=asked).text)[-2:]
    assert (error["type"], failed["type"]) == ("error", "response.failed")
    assert error["error"]["message"] == error["message"] == failed["response"]["error"]["message"]
    assert error["error"]["code"] == error["code"] == failed["response"]["error"]["code"] == "upstream_truncated"
    assert error["error"]["type"] == "server_error"
    assert failed["response"]["status"] == "failed"


def test_law_10_what_was_done_before_the_failure_stays() -> None:
    parts: tuple[Event, ...] = (PartStart(0, 0, "thinking"), Delta(0, 0, "hm"), PartEnd(0, 0), PartStart(0, 1, "text"))
    failed = Failed(GatewayError(Kind.TIMEOUT, "late"))
    events = stream_of(*parts, Delta(0, 1, "He"), failed)
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning"]


@pytest.mark.parametrize(
    ("kind", "code", "text"),
    [
        (Kind.LIMITED, "rate_limit_exceeded", "late Please try again in 3s."),
        (Kind.CONTEXT_LENGTH, "context_length_exceeded", "late"),
        (Kind.OVERLOADED, "server_is_overloaded", "late"),
        (Kind.TIMEOUT, "first_token_late", "late"),
    ],
)
def test_law_10_a_failed_response_has_the_codes_that_codex_acts_on(kind: Kind, code: str, text: str) -> None:
    """`error` keeps the finer one."""
    *_, error, failed = stream_of(Failed(GatewayError(kind, "late", code="first_token_late", retry_after=2.5)))
    assert failed["response"]["error"] == {"code": code, "message": text}
    assert (error["code"], error["message"]) == ("first_token_late", "late")


def test_law_11_silence_is_bridged_by_events_behind_one_begin() -> None:
    with Stack(workers=({"fault": "stall"},), config={"relay": {"keepalive_s": 0.1}}) as stack:
        asked = scripted(stream=True, text="Hello")
        reply = begun_stream(stack, "/v1/responses", asked, waited_twice)
    events = frames(reply.text)
    assert kinds(events)[:4] == ["created", "in_progress", "in_progress", "in_progress"]
    assert kinds(events)[-1] == "completed"
    assert kinds(events).count("created") == 1
    assert len({event["response"]["created_at"] for event in events if "response" in event}) == 1
    assert Config().relay.keepalive_s <= 15


def test_law_11_what_a_client_was_told_by_one_writer_is_not_told_again_by_the_next() -> None:
    op = read()
    first, second = DIALECT.writer(op), DIALECT.writer(op)
    assert kinds(frames(first.keepalive().decode())) == ["created", "in_progress"]
    first.keepalive()
    dropped = DIALECT.writer(op)
    dropped.write(Start("x", "w", 1))
    again = DIALECT.writer(op)
    assert b'"sequence_number":3}' in again.write(PartStart(0, 0, "tool", "c", "f"))
    assert again.write(Start("x", "w", 1)) == b""
    assert second.write(Start("x", "w", 1)) == b""
