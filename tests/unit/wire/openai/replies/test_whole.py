"""Whole replies of OpenAI's wire that go on to a client of the same wire."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.core.errors import Kind
from gateway.core.messages import Chat, Complete, Embed
from gateway.core.usage import Usage
from gateway.wire import clock
from gateway.wire.openai.replies.whole import whole
from tests.support.raised import raised

CHAT = Chat(model="m", messages=())


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "seconds", lambda: 1000.0)
    monkeypatch.setattr(clock, "new_id", lambda prefix: prefix + "made")


_TOOL = {"function": {"name": "f", "arguments": ""}}


def reply(**message: Any) -> dict[str, Any]:
    body = {"role": "assistant", "content": "hi", **message}
    return {
        "id": "x",
        "model": "sim",
        "choices": [{"index": 0, "message": body, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}},
    }


def test_a_whole_reply_changes_its_models_name_only() -> None:
    body = (
        b'{"id":"x", "object":"chat.completion","created":1,"model":"sim","zz":1.10,"choices":'
        b'[{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}]}'
    )
    assert whole(body, CHAT) == (body.replace(b'"sim"', b'"m"'), None)
    assert whole(body, msgspec.structs.replace(CHAT, model="sim"))[0] is body


def test_a_whole_replys_usage() -> None:
    _, usage = whole(json.dumps(reply()).encode(), CHAT)
    assert usage == Usage(1, 2, 1)


def test_a_whole_replys_text_may_quote_the_models_name() -> None:
    body = json.dumps(reply(content='"model":"sim"'), separators=(",", ":")).encode()
    found = json.loads(whole(body, CHAT)[0])
    assert found["model"] == "m"
    assert found["choices"][0]["message"]["content"] == '"model":"sim"'


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_a_whole_replys_thinking_comes_under_both_names(name: str) -> None:
    found = json.loads(whole(json.dumps(reply(**{name: "hm"})).encode(), CHAT)[0])
    message = found["choices"][0]["message"]
    assert message["reasoning"] == message["reasoning_content"] == "hm"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"choices":7}',
        b"\xff",
        b"[" * 100_000,
        b'{"model":"m","choices":[]}',
        b'{"model":"m","choices":[{}]}',
        b'{"model":"m","choices":[{"finish_reason":"stop"}]}',
        b'{"model":"m","choices":[{"message":"text","finish_reason":"stop","note":"reasoning"}]}',
        b'{"model":"m","choices":[{"message":{"content":"\xff\xfe","reasoning":null},"finish_reason":"stop"}]}',
        b'{"model":"m","choices":[{"message":{"content":"\xff\xfe","reasoning":"r"},"finish_reason":"stop"}]}',
        b'{"model":"m","choices":[{"message":{"content":"a"}},{"message":{"content":"b"}}]}',
        b'{"model":"m","data":[{"embedding":[1]}]}',
    ],
)
def test_what_is_no_whole_reply_is_the_workers_fault(body: bytes) -> None:
    assert raised(whole, body, CHAT).code == "upstream_malformed"


def test_an_error_in_a_200_is_an_error() -> None:
    assert raised(whole, b'{"error":{"message":"bad","code":400}}', CHAT).kind is Kind.BAD_REQUEST
    aborted = reply()
    aborted["choices"][0]["finish_reason"] = "abort"
    assert raised(whole, json.dumps(aborted).encode(), CHAT).code == "upstream_aborted"


TEXTS = Complete(model="m", prompts=("a", "b"))
VECTORS = Embed(model="m", inputs=("a", "b"))


@pytest.mark.parametrize(
    ("op", "body"),
    [
        (TEXTS, {"choices": [{"text": "a", "finish_reason": "stop"}]}),
        (TEXTS, {"choices": [{"text": "a", "finish_reason": "stop"}, {"text": "b", "finish_reason": None}]}),
        (TEXTS, {"choices": [{"text": "a", "finish_reason": "stop"}, {"finish_reason": "stop"}]}),
        (VECTORS, {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}),
        (VECTORS, {"data": [{"embedding": [1.0]}]}),
        (VECTORS, {"data": [{"embedding": [1.0]}, {"embedding": None}]}),
        (VECTORS, {"data": []}),
    ],
)
def test_less_than_was_asked_for_is_the_workers_fault(op: Complete | Embed, body: dict[str, Any]) -> None:
    assert raised(whole, json.dumps({"model": "m", **body}).encode(), op).code == "upstream_malformed"


def test_as_much_as_was_asked_for_is_a_reply() -> None:
    both = [{"text": text, "index": index, "finish_reason": "stop"} for index, text in enumerate("ab")]
    for op, body in ((TEXTS, {"choices": both}), (VECTORS, {"data": [{"embedding": [1.0]}, {"embedding": [2.0]}]})):
        told = json.dumps({"id": "x", "object": "text_completion", "created": 1, "model": "m", **body}).encode()
        assert whole(told, op) == (told, None)


def test_only_the_models_own_name_is_exchanged() -> None:
    found = json.loads(whole(json.dumps({"meta": {"model": "m2"}, **reply()}, separators=(",", ":")).encode(), CHAT)[0])
    assert (found["model"], found["meta"]) == ("m", {"model": "m2"})


@pytest.mark.usefixtures("made")
def test_a_whole_reply_has_all_that_clients_read() -> None:
    body = {
        "model": "sim",
        "choices": [{"message": {"content": None, "tool_calls": [_TOOL]}, "finish_reason": "tool_calls"}],
    }
    found = json.loads(whole(json.dumps(body).encode(), CHAT)[0])
    assert (found["id"], found["created"], found["object"]) == ("chatcmpl-made", 1000, "chat.completion")
    (told,) = found["choices"]
    assert told["index"] == 0
    assert told["message"]["role"] == "assistant"
    function = {**_TOOL["function"], "arguments": "{}"}
    assert told["message"]["tool_calls"] == [{"function": function, "id": "call_made", "type": "function"}]


@pytest.mark.parametrize(
    ("member", "odd"),
    [
        *(("usage", f'{{"prompt_tokens":1,"completion_tokens":{count}}}') for count in (-1, 2**31, 10**30)),
        *(("odd", odd) for odd in ("1e400", "-1e400", "1" + "0" * 30, "NaN", '"\xff"', "-9223372036854775809")),
        ("odd", "[" * 5000),
    ],
)
def test_a_member_that_makes_no_sense_is_the_workers_fault(member: str, odd: str) -> None:
    body = json.dumps({**reply(), member: 7}, separators=(",", ":")).encode()
    broken = body.replace(b'"%b":7' % member.encode(), f'"{member}":{odd}'.encode("latin-1"))
    assert raised(whole, broken, CHAT).code == "upstream_malformed"


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(("created", "seen"), [(-1, 1000), (1e300, 1000), (10**15, 1000), (0, 1000), (2.5, 2)])
def test_a_time_that_is_none_is_replaced(created: float, seen: int) -> None:
    body, _ = whole(json.dumps({**reply(), "created": created}).encode(), CHAT)
    assert json.loads(body)["created"] == seen


def test_nulls_that_openai_does_not_describe_are_left_out() -> None:
    """Those of vLLM's members, whether the reply is read again or not; texts that look like them stay."""
    text = ',"annotations":null'
    message = {"content": text, "refusal": None, "annotations": None, "audio": None, "function_call": None}
    for more in ({}, {"reasoning": "hm"}):
        body = reply(**message, **more)
        body |= {"object": "chat.completion", "created": 1, "system_fingerprint": None, "service_tier": None}
        body["usage"] |= {"prompt_tokens_details": None, "completion_tokens_details": None}
        found = json.loads(whole(msgspec.json.encode(body), CHAT)[0])
        (choice,) = found["choices"]
        assert choice["message"]["content"] == text
        assert {name for name, value in choice["message"].items() if value is None} == {"refusal", "audio"}
        assert {name for name, value in found.items() if value is None} == {"service_tier"}
        assert found["usage"] == {"prompt_tokens": 1, "completion_tokens": 2}
