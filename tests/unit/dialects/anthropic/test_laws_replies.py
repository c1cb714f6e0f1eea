"""Laws 7 to 15: streams and whole replies, failures within them, and thinking."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from msgspec.json import Decoder as JSONDecoder

from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Delta, End, Event, Failed, Finish, PartEnd, PartStart, Start, UsageReport
from gateway.core.messages import Thinking
from gateway.core.usage import Usage
from gateway.wire.openai.replies.views import UsageIn, decoded, usage
from tests.support.harness import Stack, begun_stream
from tests.unit.dialects.anthropic.asking import ASKING, DIALECT, frames, heard, read, scripted, sent
from tests.unit.dialects.anthropic.posted import post
from tests.unit.dialects.asking import HI, ONE, SIDE_BY_SIDE, TWO
from tests.unit.dialects.asking import SCRIPTS as ALL_SCRIPTS


def streamed(client: httpx.Client, **script: Any) -> list[dict[str, Any]]:
    reply = client.post("/v1/messages", json=scripted(stream=True, **script))
    assert reply.headers["content-type"].startswith("text/event-stream")
    return frames(reply.text)


SCRIPTS: dict[str, dict[str, Any]] = {
    **ALL_SCRIPTS,
    "calls": {"text": "I look.", "tool_calls": [{"name": "f", "arguments": {"a": [1]}}, {"name": "g"}]},
    "filtered": {"text": "", "finish": "content_filter"},
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_law_7_and_8_and_10_a_stream_says_what_a_whole_reply_says(client: httpx.Client, script: dict[str, Any]) -> None:
    """It has one begin, one end, and blocks one at a time."""
    events = streamed(client, **script)
    kinds = [event["type"] for event in events if not event["type"].startswith("content_block")]
    assert kinds == ["message_start", "message_delta", "message_stop"]
    assert (events[0]["type"], events[-2]["type"]) == ("message_start", "message_delta")
    whole = post(client, scripted(**script))
    blocks = heard(events)
    for reply in (blocks, whole["content"]):
        for block in reply:
            block.pop("id", None)
    assert blocks == whole["content"]
    assert events[-2]["delta"] == {"stop_reason": whole["stop_reason"], "stop_sequence": whole["stop_sequence"]}
    assert events[-2]["usage"].keys() == whole["usage"].keys()
    start = events[0]["message"]
    assert start.keys() == whole.keys()
    assert (start["type"], start["role"], start["content"], start["model"]) == ("message", "assistant", [], "m")
    assert (start["stop_reason"], start["stop_sequence"]) == (None, None)
    assert {"input_tokens", "output_tokens"} <= start["usage"].keys()


def stream_of(*events: Event) -> list[dict[str, Any]]:
    return frames(ASKING.streamed(*events))


def test_law_8_calls_that_a_worker_writes_side_by_side_do_not_mix() -> None:
    blocks = heard(stream_of(*SIDE_BY_SIDE))
    assert [(block["id"], block["input"]) for block in blocks] == [("c1", json.loads(ONE)), ("c2", json.loads(TWO))]


def test_law_8_a_complete_call_does_not_wait_for_the_end_of_the_reply() -> None:
    writer = DIALECT.writer(read())
    for event in (Start("x", "w", 1), PartStart(0, 0, "tool", "c1", "f"), Delta(0, 0, '{"a": {}'), Delta(0, 0, "}")):
        writer.write(event)
    assert b'"content_block_stop","index":0' in writer.write(PartStart(0, 1, "tool", "c2", "g"))
    assert b'"partial_json":"{"' in writer.write(Delta(0, 1, "{"))


def test_law_8_what_waits_for_its_turn_is_counted() -> None:
    writer = DIALECT.writer(read())
    for event in (
        Start("x", "w", 1),
        PartStart(0, 0, "tool", "c1", "f"),
        PartStart(0, 1, "tool", "c2", "g"),
        Delta(0, 1, "x" * 1000),
    ):
        writer.write(event)
    assert writer.buffered_bytes > 1000
    ends: tuple[Event, ...] = (PartEnd(0, 0), PartEnd(0, 1), Finish(0, "tool_calls", "tool_calls"), End())
    for end in ends:
        writer.write(end)
    assert writer.buffered_bytes == 0


@pytest.mark.parametrize(
    ("reason", "calls", "stop", "told"),
    [
        ("stop", 0, None, ("end_turn", None)),
        ("stop", 0, "END", ("stop_sequence", "END")),
        ("stop", 0, 7, ("end_turn", None)),
        ("stop", 1, None, ("tool_use", None)),
        ("tool_calls", 1, None, ("tool_use", None)),
        ("tool_calls", 0, None, ("end_turn", None)),
        ("length", 1, None, ("max_tokens", None)),
        ("length", 0, None, ("max_tokens", None)),
        ("content_filter", 0, None, ("refusal", None)),
    ],
)
def test_law_9_why_it_ended(reason: Any, calls: int, stop: Any, told: tuple[str, str | None]) -> None:
    parts: list[Event] = [PartStart(0, 0, "tool", "c", "f"), PartEnd(0, 0)] if calls else []
    events = stream_of(*parts, Finish(0, reason, reason, stop), End())
    assert (events[-2]["delta"]["stop_reason"], events[-2]["delta"]["stop_sequence"]) == told


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        (Usage(10, 3), (10, 0, 0)),
        (Usage(10, 3, 4, 2), (6, 4, 0)),
        (Usage(10, 2, cached=6, stored=4), (0, 6, 4)),
        (Usage(10, 2, stored=10), (0, 0, 10)),
        # Numbers that do not add up are cut: none is below 0.
        (Usage(10, 2, cached=60, stored=4), (0, 10, 0)),
        (Usage(None, 3), (0, 0, 0)),
        (Usage(0, 0, 0, 0), (0, 0, 0)),
    ],
)
def test_law_11_the_three_counts_of_the_input_are_the_workers_one(usage: Usage, counts: tuple[int, int, int]) -> None:
    told = stream_of(Finish(0, "stop", "stop"), UsageReport(usage), End())[-2]["usage"]
    assert tuple(told[f"{name}input_tokens"] for name in ("", "cache_read_", "cache_creation_")) == counts
    assert told["output_tokens"] == usage.output


def test_law_12_before_the_first_block_a_failure_is_a_status(client: httpx.Client) -> None:
    refused = client.post("/v1/messages", json={**scripted(stream=True, text="hi"), "model": "none"})
    assert refused.status_code == 404
    told = refused.json()
    assert told["error"].pop("message")
    assert told["error"] == {"type": "not_found_error", "details": {"error_code": "model_not_found"}}
    assert told["type"] == "error"
    assert told["request_id"] == refused.headers["request-id"]


@pytest.mark.parametrize("fault", ["reset@3", "eof@3", "fin@3"])
def test_law_12_and_13_a_stream_that_stops_ends_with_one_error(fault: str) -> None:
    asked = scripted(stream=True, text="Hello there, how are you?", fault=fault)
    with Stack(workers=({"itl_ms": 20},)) as stack, httpx.Client(base_url=stack.url) as client:
        events = frames(client.post("/v1/messages", json=asked).text)
    kinds = [event["type"] for event in events]
    assert kinds.count("error") == 1
    assert kinds[-1] == "error"
    assert not {"message_delta", "message_stop"} & set(kinds)
    assert events[-1]["error"]["type"] == "api_error"


def test_law_13_no_event_but_the_workers_own_end_stops_a_message() -> None:
    writer = DIALECT.writer(read())
    failed = Failed(GatewayError(Kind.TRUNCATED, "cut"))
    said = writer.write(Start("x", "w", 1)) + writer.write(PartStart(0, 0, "text")) + writer.write(Delta(0, 0, "a"))
    said += writer.write(failed)
    assert b"message_stop" not in said
    assert b"message_delta" not in said


def test_law_14_silence_is_bridged_by_pings_behind_one_begin() -> None:
    with Stack(workers=({"fault": "stall"},), config={"relay": {"keepalive_s": 0.1}}) as stack:
        asked = scripted(stream=True, text="Hello")
        reply = begun_stream(stack, "/v1/messages", asked, lambda said: said.count(b"event: ping\n") >= 2)
    events = frames(reply.text)
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["message_start", "ping", "ping"]
    assert kinds.count("message_start") == 1
    assert kinds[-1] == "message_stop"
    assert [block["text"] for block in heard(events)] == ["Hello"]


def test_law_15_thinking_is_signed_and_comes_back_as_reasoning(client: httpx.Client) -> None:
    whole = post(client, scripted(reasoning="hm", text="Hello"))
    assert [block["type"] for block in whole["content"]] == ["thinking", "text"]
    assert whole["content"][0]["signature"]
    for signature in (whole["content"][0]["signature"], "somebody's", ""):
        thought = {"type": "thinking", "thinking": "hm", "signature": signature}
        hidden = {"type": "redacted_thinking", "data": "x"}
        turns = [*HI, {"role": "assistant", "content": [thought, hidden, {"type": "text", "text": "Hello"}]}, *HI]
        op = read(messages=turns)
        assert op.messages[1].parts[0] == Thinking("hm")
        assert op.dropped == ("messages[].content[].redacted_thinking",)
        told = sent(messages=turns)["messages"][1]
        assert (told["reasoning"], told["reasoning_content"], told["content"]) == ("hm", "hm", "Hello")


def test_a_stream_begins_with_the_prompts_tokens(client: httpx.Client) -> None:
    events = streamed(client, text="hello you")
    first, last = events[0]["message"]["usage"], events[-2]["usage"]
    assert first["input_tokens"] > 0
    assert (first["input_tokens"], first["output_tokens"]) == (last["input_tokens"], 0)
    assert last["output_tokens"] > 0
    whole = post(client, scripted(text="hello you"))["usage"]
    assert whole == last


def test_what_vllm_says_that_it_stored_is_read() -> None:
    said = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"created_cache_tokens": 7}}
    assert usage(decoded(json.dumps(said).encode(), JSONDecoder(UsageIn))) == Usage(9, 1, stored=7)
