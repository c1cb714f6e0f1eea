"""Requests of the Ollama-style API, in canonical form and as workers get them; and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.core.ports import Settings
from gateway.dialects import create
from gateway.dialects.ollama_style.fields import FIELDS
from tests.unit.dialects.asking import HI, request, to_worker
from tests.unit.dialects.ollama_style.exchange import DIALECT, PNG, chat, read, refused


def test_sample_request() -> None:
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Hello, how are you?"},
    ]
    op = read({"model": "model-name", "messages": messages, "stream": False, "temperature": 0.7})
    assert to_worker(op) == {"messages": messages, "temperature": 0.7, "model": "w"}
    assert (op.model, op.stream) == ("model-name", False)


def test_null_is_absent_for_every_field() -> None:
    names = [
        field.name for field in FIELDS["chat"] if "." not in field.name and field.name not in ("model", "messages")
    ]
    options = {"num_predict": None, "num_ctx": None}
    assert read(chat(**dict.fromkeys([*names, "unheard_of"]))) == read(chat())
    assert read(chat(options=options)) == read(chat())


def test_what_is_unknown_is_dropped_and_named() -> None:
    dotted = {"options.top_k": 5}
    op = read(chat(keep_alive="5m", think=True, options={"num_ctx": 2048, "temperature": 0.1}, **dotted))
    assert op.dropped == ("keep_alive", "options.top_k", "options.num_ctx", "think")
    assert read(chat(think=False)).dropped == ("think",)
    assert to_worker(op) == {"messages": HI, "temperature": 0.1, "model": "w"}


def test_the_extras_policy_is_configurable() -> None:
    passing = read(
        chat(safe_mode=True, options={"num_ctx": 1}), dialect=create("ollama_style", Settings(extras="pass"))
    )
    assert to_worker(passing)["safe_mode"] is True
    assert passing.dropped == ("options.num_ctx",)
    strict = create("ollama_style", Settings(extras="error"))
    assert refused(chat(keep_alive="5m"), dialect=strict)[1]["code"] == "unknown_parameter"
    assert "'options.num_ctx'" in refused(chat(options={"num_ctx": 1}), dialect=strict)[1]["message"]


@pytest.mark.parametrize("value", [-1, -2])
def test_no_limit_of_output(value: int) -> None:
    assert read(chat(options={"num_predict": value})) == read(chat())


def test_a_schema_as_format() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    found = to_worker(read(chat(format=schema)))["response_format"]
    assert found == {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (chat(n=2), "'n' must be 1"),
        (chat(top_k="x"), "'top_k' must be an integer"),
        (chat(max_tokens=5, options={"num_predict": 5}), "'options.num_predict' and 'max_tokens'"),
        (chat(max_tokens=5, max_completion_tokens=5), "'max_completion_tokens' and 'max_tokens'"),
        (chat(format="json", response_format={"type": "text"}), "'format' and 'response_format'"),
        (chat(think="low", reasoning_effort="high"), "'think' and 'reasoning_effort'"),
        (chat(options={"num_predict": "x"}), "'options.num_predict'"),
        (chat(options={"repeat_penalty": 0}), "'options.repeat_penalty'"),
        (chat(repetition_penalty=10.5), "'repetition_penalty' must be at most 10"),
        (chat(options=[1]), "'options' must be an object"),
        (chat(format="xml"), "'format'"),
        (chat(messages=[{"role": "user", "content": "x", "images": ["?"]}]), "'messages.0.images.0'"),
        (chat(messages=[{"role": "user", "content": "x", "images": 5}]), "'messages.0.images'"),
        (b'{"model":"m","messages":[],"top_k":' + b"[" * 5000 + b"]" * 5000 + b"}", "too deeply"),
        (b"{", "not valid JSON"),
    ],
)
def test_bad_requests_name_the_clients_own_field(body: Any, what: str) -> None:
    status, error = refused(body)
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert what in error["message"]


def test_worker_errors_use_the_clients_own_names() -> None:
    asked = request(chat(options={"num_predict": 5}, format="json"))
    for error, what in (
        (GatewayError(Kind.BAD_REQUEST, "'max_tokens' is wrong", param="max_tokens"), "'options.num_predict' is wrong"),
        (GatewayError(Kind.UNSUPPORTED, "this model cannot", param="response_format"), "'format': this model cannot"),
        (GatewayError(Kind.UNSUPPORTED, "this model cannot", param="tools"), "'tools': this model cannot"),
    ):
        assert json.loads(DIALECT.refuse(error, asked, None)[0].body)["error"]["message"].startswith(what)


def test_sse_always_streams() -> None:
    for given in (False, True, None, "nonsense"):
        op = read(chat(stream=given), "sse")
        assert (op.stream, op.view) == (True, "sse")
    assert read(chat(stream=True)).view == "ndjson"


def test_messages_with_images_thinking_and_calls() -> None:
    messages = [
        {"role": "user", "content": "look", "images": [PNG]},
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [{"id": "1", "function": {"name": "f"}}]},
        {"role": "tool", "content": "r", "tool_name": "f"},
    ]
    messages[1]["tool_calls"][0]["function"]["arguments"] = {"a": 1}  # type: ignore[index]
    sent = to_worker(read(chat(messages=messages)))["messages"]
    assert sent[0]["content"][1] == {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    assert sent[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a":1}'}
    assert sent[1]["reasoning_content"] == "hm"
    assert (sent[2]["tool_call_id"], sent[2]["name"]) == ("1", "f")


def test_calls_in_ollamas_own_form_have_ids_that_their_answers_name() -> None:
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [call, {"function": {"name": "g", "arguments": {}}}]},
        {"role": "tool", "content": "of g", "tool_name": "g"},
        {"role": "tool", "content": "of f"},
    ]
    sent = to_worker(read(chat(messages=messages)))["messages"]
    ids = [call["id"] for call in sent[1]["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(isinstance(one, str) for one in ids)
    assert [message["tool_call_id"] for message in sent[2:]] == [ids[1], ids[0]]
    assert to_worker(read(chat(messages=messages)))["messages"] == sent


@pytest.mark.parametrize(
    ("members", "what"),
    [
        ({"thinking": "a", "reasoning": "b"}, "'messages.0.thinking' and 'messages.0.reasoning'"),
        ({"thinking": "a", "reasoning_content": "a"}, "'messages.0.thinking' and 'messages.0.reasoning'"),
        ({"tool_name": "f", "name": "g"}, "'messages.0.tool_name' and 'messages.0.name'"),
    ],
)
def test_the_same_said_twice_in_a_message(members: dict[str, Any], what: str) -> None:
    status, error = refused(chat(messages=[{"role": "assistant", "content": "x", **members}]))
    assert (status, what in error["message"]) == (400, True)


def test_what_is_unknown_in_a_message_is_dropped_and_named() -> None:
    call = {"function": {"index": 0, "name": "f", "arguments": {}}}
    messages = [{"role": "assistant", "content": "a", "thinking": None, "tool_calls": [call], "x": 1}]
    op = read(chat(messages=messages))
    assert op.dropped == ("messages[].tool_calls[].function.index", "messages[].x")
    passing = read(chat(messages=messages), dialect=create("ollama_style", Settings(extras="pass")))
    assert to_worker(passing)["messages"][0]["x"] == 1


def test_what_openais_wire_defines_is_read_as_there_when_passed_on() -> None:
    passing = create("ollama_style", Settings(extras="pass"))
    asked = chat(stream=True, stream_options={"x": 1}, min_tokens=3)
    sent = to_worker(read(asked, dialect=passing))
    assert (sent["stream_options"], sent["min_tokens"]) == ({"x": 1, "include_usage": True}, 3)
    assert refused(chat(stream_options={"x": 1}), dialect=passing)[0] == 400
