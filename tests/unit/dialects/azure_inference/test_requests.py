"""Requests of Azure AI Model Inference, in canonical form and as workers get them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.http import Headers
from gateway.core.ports import Settings
from gateway.dialects import create
from tests.unit.dialects.asking import HI, to_worker
from tests.unit.dialects.azure_inference.exchange import (
    DIALECT,
    PNG,
    SAMPLE_REQUEST,
    chat,
    ms_code,
    read,
    refused,
    request,
)


def test_sample_request() -> None:
    op = read(SAMPLE_REQUEST)
    assert to_worker(op) == {
        "messages": SAMPLE_REQUEST["messages"],
        "model": "w",
        "max_tokens": 256,
        "stop": ["<|endoftext|>"],
        "temperature": 0.0,
        "top_p": 1.0,
        "seed": 42,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
    }
    assert (op.model, op.stream, op.dropped) == (None, False, ())


def test_defaults_are_said_aloud() -> None:
    defaults = {"temperature": 1.0, "top_p": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
    assert to_worker(read(chat())) == {"messages": HI, "model": "w", **defaults}


MISSING, INVALID = "MissingApiVersionParameter", "InvalidApiVersionParameter"


@pytest.mark.parametrize(
    ("code", "query"),
    [
        *((MISSING, query) for query in (b"", b"api-version=", b"version=2024-05-01")),
        *((INVALID, b"api-version=" + word) for word in (b"xx", b"2024-05", b"2024-05-01-beta", b"2024-05-01%0a")),
    ],
)
def test_the_version_is_required_on_every_path(query: bytes, code: str) -> None:
    for route, body in (("chat", chat()), ("embed", {"input": "x"}), ("info", None)):
        response = refused(body, query=query, route=route)
        assert (response.status, ms_code(response)) == (400, code)
        found = json.loads(response.body)
        assert list(found) == ["code", "error", "message", "param", "status"]
        assert (found["code"], found["param"], found["status"]) == (code, "api-version", 400)


@pytest.mark.parametrize("query", [b"api-version=2024-04-01-preview", b"a=b&api-version=2025-04-01"])
def test_any_well_formed_version_is_taken(query: bytes) -> None:
    DIALECT.read(request(chat(), query=query))


EXTRAS = {"top_k": 5, "safe_mode": True, "n": 2, "logprobs": True}


@pytest.mark.parametrize("word", [b"pass-through", b"Pass-Through", b" pass-through "])
def test_extras_pass(word: bytes) -> None:
    op = read(chat(**EXTRAS), (b"extra-parameters", word))
    assert to_worker(op) | {"messages": HI} == to_worker(read(chat())) | EXTRAS
    assert (op.n, op.dropped) == (2, ())


@pytest.mark.parametrize("word", [b"ignore", b"drop", b"DROP"])
def test_extras_are_dropped_and_named(word: bytes) -> None:
    op = read(chat(**EXTRAS), (b"extra-parameters", word))
    assert to_worker(op) == to_worker(read(chat()))
    assert (op.n, op.logprobs, op.dropped) == (1, None, ("top_k", "safe_mode", "n", "logprobs"))


@pytest.mark.parametrize(
    "lines", [[b"drop", b"pass-through"], [b"drop, error"], [b"drop", b"nonsense"], [b"drop", b""], [b"drop,"]]
)
def test_lines_of_the_header_are_one_list(lines: list[bytes]) -> None:
    """It holds one word, however often (RFC 9110, section 5.3)."""
    response = refused(chat(), *((b"extra-parameters", line) for line in lines))
    assert (response.status, ms_code(response)) == (400, "invalid_header")
    for same in ([b"drop", b"Drop"], [b"drop, drop"]):
        assert read(chat(**EXTRAS), *((b"extra-parameters", line) for line in same)).dropped


@pytest.mark.parametrize(
    ("extras", "headers"),
    [
        (EXTRAS, []),
        (EXTRAS, [(b"extra-parameters", b"error")]),
        # Names of headers and of the query are no fields.
        *(({name: "m"}, []) for name in ("api-version", "extra-parameters", "azureml-model-deployment")),
    ],
)
def test_extras_are_an_error_by_default(extras: dict[str, Any], headers: Headers) -> None:
    response = refused(chat(**extras), *headers)
    body = json.loads(response.body)
    assert (response.status, ms_code(response)) == (400, "unknown_parameter")
    assert all(f"'{name}'" in body["message"] for name in extras)


def test_extras_default_is_configurable_and_the_header_comes_first() -> None:
    lenient = create("azure_inference", Settings(extras="drop"))
    assert read(chat(x=1), dialect=lenient).dropped == ("x",)
    assert read(chat(x=1), (b"extra-parameters", b"pass-through"), dialect=lenient).dropped == ()
    response = refused(chat(), (b"extra-parameters", b"allow"))
    assert (response.status, json.loads(response.body)["param"]) == (400, "extra-parameters")


def test_extras_inside_messages_follow_the_policy() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "content": "a", "cache_control": {"type": "x"}}]}]
    response = refused(chat(messages=messages))
    body = json.loads(response.body)
    assert (response.status, ms_code(response)) == (400, "unknown_parameter")
    assert body["param"] == "messages.0.content.0.cache_control"
    op = read(chat(messages=messages), (b"extra-parameters", b"ignore"))
    assert op.dropped == ("messages[].content[].cache_control",)
    assert to_worker(op)["messages"] == [{"role": "user", "content": "a"}]
    sent = to_worker(read(chat(messages=messages), (b"extra-parameters", b"pass-through")))["messages"][0]["content"]
    assert sent == [{"type": "text", "text": "a", "cache_control": {"type": "x"}}]


@pytest.mark.parametrize(
    ("part", "place"),
    [
        ({"type": "text", "content": "a", "detail": "low"}, "detail"),
        ({"type": "text", "content": "a", "text": "b"}, "text"),
        ({"type": "image", "content": "http://x/y.png", "image_url": {"url": "http://x/z.png"}}, "image_url"),
        ({"type": "text", "content": 5}, "content"),
        ({"type": "image", "content": "http://x/y.png", "detail": 5}, "detail"),
        ({"content": "a"}, "type"),
    ],
)
def test_a_part_of_the_specifications_form_has_no_more(part: dict[str, Any], place: str) -> None:
    response = refused(chat(messages=[{"role": "user", "content": [part]}]))
    body = json.loads(response.body)
    assert (response.status, body["param"]) == (400, f"messages.0.content.0.{place}")
    assert body["param"] in body["message"]


@pytest.mark.parametrize(
    ("header", "model", "expected"),
    [(b"blue", "m", "blue"), (b"blue", None, "blue"), (None, "m", "m"), (b" ", "m", "m"), (None, None, None)],
)
def test_the_deployment_header_comes_first(header: bytes | None, model: str | None, expected: str | None) -> None:
    headers = [] if header is None else [(b"azureml-model-deployment", header)]
    assert read(chat(model=model), *headers).model == expected


def shown(url: str, **detail: str) -> dict[str, Any]:
    """An image as OpenAI has it."""
    return {"type": "image_url", "image_url": {"url": url, **detail}}


DATA, LINK = "data:image/png;base64,AAA", "https://x/y.png"
TEXT = {"type": "text", "text": "a"}
SOUND = {"type": "input_audio", "input_audio": {"data": "AAA", "format": "wav"}}
SOUND_URL = {"type": "audio_url", "audio_url": {"url": "http://x"}}


@pytest.mark.parametrize(
    ("part", "sent"),
    [
        (TEXT, TEXT),
        ({"type": "text", "content": "a"}, TEXT),
        ({"type": "image", "content": LINK, "detail": "low"}, shown(LINK, detail="low")),
        ({"type": "image_url", "content": DATA}, shown(DATA)),
        ({"type": "image", "content": PNG}, shown(f"data:image/png;base64,{PNG}")),
        (shown(DATA, detail="low"), shown(DATA, detail="low")),
        (SOUND, SOUND),
        (SOUND_URL, SOUND_URL),
    ],
)
def test_both_shapes_of_content_parts(part: Any, sent: Any) -> None:
    content = [{"type": "text", "text": "look"}, part]
    found = to_worker(read({"messages": [{"role": "user", "content": content}]}))
    assert found["messages"][0]["content"][1] == sent


@pytest.mark.parametrize(
    ("part", "loc", "value"),
    [
        ({"type": "image", "content": "not an image!"}, ["content"], "not an image!"),
        ({"type": "smell", "content": "x"}, [], '{"type":"smell","content":"x"}'),
    ],
)
def test_content_that_no_model_understands(part: Any, loc: list[str], value: str) -> None:
    content = [{"type": "text", "text": "look"}, part]
    response = refused({"messages": [{"role": "user", "content": content}]})
    assert response.status == 422
    place = ["body", "messages", "0", "content", "1", *loc]
    assert json.loads(response.body)["detail"] == {"loc": place, "value": value, "input": value}


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "image", "content": LINK, "detail": "huge"}, "detail"),
        ({"type": "image", "content": PNG, "detail": ""}, "detail"),
        (shown(LINK, detail="huge"), "image_url.detail"),
    ],
)
def test_a_detail_that_the_specification_does_not_have(part: Any, param: str) -> None:
    response = refused({"messages": [{"role": "user", "content": [part]}]})
    body = json.loads(response.body)
    place = f"messages.0.content.0.{param}"
    assert (response.status, body["param"], ms_code(response)) == (400, place, "invalid_value")


@pytest.mark.parametrize("name", ["a b!", "a.b", "é", "f\n", "x" * 65])
def test_a_function_name_that_the_specification_does_not_allow(name: str) -> None:
    tools = [{"type": "function", "function": {"name": one}} for one in ("x" * 64, "aZ0_-", name)]
    response = refused(chat(tools=tools))
    body = json.loads(response.body)
    assert (response.status, body["param"], body["code"]) == (400, "tools.2.function.name", "invalid_value")
    assert len(read(chat(tools=tools[:2])).tools) == 2


def test_an_unknown_role() -> None:
    response = refused({"messages": [*HI, {"role": "robot", "content": "x"}]})
    assert response.status == 422
    detail = {"loc": ["body", "messages", "1", "role"], "value": "robot", "input": "robot"}
    assert json.loads(response.body)["detail"] == detail


def test_tool_results_without_ids_answer_the_calls_in_order() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "d"},
        {"role": "assistant", "tool_calls": [{"id": "a", **call}, {"id": "b", **call}, {"id": "c", **call}]},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "3", "tool_call_id": "c"},
        {"role": "tool", "content": "2"},
    ]
    sent = to_worker(read({"messages": messages}))["messages"]
    assert [message.get("tool_call_id") for message in sent] == [None, None, "a", "c", "b"]
    assert sent[0]["role"] == "system"


def test_tool_choice_without_tools() -> None:
    op = read(chat(tools=[], tool_choice="auto"))
    assert ("tool_choice" not in to_worker(op), op.dropped) == (True, ("tool_choice",))
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        assert refused(chat(tool_choice=choice)).status == 400
