"""The dialect `azure`, byte by byte: what it reads, writes and refuses. No socket."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.backends.vllm import Vllm
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Headers, Request, Response
from gateway.core.lanes import EventLane
from gateway.core.lifecycle import fold
from gateway.core.messages import Chat, Embed, ListModels, ModelCard
from gateway.core.ports import Capabilities, Dialect, Settings
from gateway.dialects import create
from gateway.dialects.azure import Azure
from gateway.dialects.azure.errors import ERRORS
from gateway.dialects.azure.fields import FIELDS

QUERY = b"api-version=2024-05-01-preview"
DIALECT = Azure()
HI = [{"role": "user", "content": "hi"}]
PNG = "iVBORw0KGgoAAAANSUhEUg=="

SAMPLE_REQUEST: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "You are a helpful assistant"},
        {"role": "user", "content": "Explain Riemann's conjecture"},
        {"role": "assistant", "content": "The Riemann Conjecture is a deep mathematical conjecture ..."},
        {"role": "user", "content": "Ist it proved?"},
    ],
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "max_tokens": 256,
    "seed": 42,
    "stop": "<|endoftext|>",
    "stream": False,
    "temperature": 0,
    "top_p": 1,
    "response_format": {"type": "text"},
}
SAMPLE_REPLY = """{
  "id": "1234567890",
  "model": "llama2-70b-chat",
  "choices": [
    {
      "index": 0,
      "finish_reason": "stop",
      "message": {
        "role": "assistant",
        "content": "No, it has never been proved"
      }
    }
  ],
  "created": 1234567890,
  "object": "chat.completion",
  "usage": {
    "prompt_tokens": 205,
    "completion_tokens": 5,
    "total_tokens": 210
  }
}"""


def request(
    body: Any = None, *headers: tuple[bytes, bytes], query: bytes = QUERY, route: str = "chat", method: str = "POST"
) -> Request:
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    found: Headers = [(b"content-type", b"application/json"), *headers]
    return Request(method, "/chat/completions", found, raw, query, route)


def read(body: Any, *headers: tuple[bytes, bytes], dialect: Dialect = DIALECT) -> Chat:
    op = dialect.read(request(body, *headers))
    assert isinstance(op, Chat)
    return op


def chat(**members: Any) -> dict[str, Any]:
    return {"messages": HI, **members}


def to_worker(op: Chat | Embed) -> Any:
    return json.loads(Vllm().write(op, Capabilities("w")).body)


def refused(body: Any, *headers: tuple[bytes, bytes], query: bytes = QUERY, route: str = "chat") -> Response:
    """The response to a request that the dialect itself refuses."""
    asked = request(body, *headers, query=query, route=route)
    with pytest.raises(GatewayError) as caught:
        DIALECT.read(asked)
    return DIALECT.refuse(caught.value, asked, None)[0]


def ms_code(response: Response) -> str:
    value = response.header(b"x-ms-error-code")
    assert value is not None
    return value.decode()


# -- requests -------------------------------------------------------------------------------------------------------


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
    sent = to_worker(read(chat()))
    assert sent == {
        "messages": HI,
        "model": "w",
        "temperature": 1.0,
        "top_p": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
    }


@pytest.mark.parametrize("field", [field for field in FIELDS["chat"] if field.where == "body"], ids=lambda f: f.name)
def test_each_field_reaches_the_worker(field: Any) -> None:
    body = chat(**{field.name: field.sample})
    if field.name == "tool_choice":
        body["tools"] = [{"type": "function", "function": {"name": "f"}}]
    sent = to_worker(read(body))
    assert sent[field.name] == ("w" if field.name == "model" else field.sample)


def test_null_is_absent_for_every_field() -> None:
    names = [field.name for field in FIELDS["chat"] if field.where == "body" and field.name != "messages"]
    assert read(chat(**dict.fromkeys([*names, "unheard_of"]))) == read(chat())


@pytest.mark.parametrize(
    ("query", "code"),
    [
        (b"", "MissingApiVersionParameter"),
        (b"api-version=", "MissingApiVersionParameter"),
        (b"version=2024-05-01", "MissingApiVersionParameter"),
        (b"api-version=xx", "InvalidApiVersionParameter"),
        (b"api-version=2024-05", "InvalidApiVersionParameter"),
        (b"api-version=2024-05-01-beta", "InvalidApiVersionParameter"),
        (b"api-version=2024-05-01%0a", "InvalidApiVersionParameter"),
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


@pytest.mark.parametrize("name", ["api-version", "extra-parameters", "azureml-model-deployment"])
def test_headers_are_no_fields(name: str) -> None:
    assert refused(chat(**{name: "m"})).status == 400


@pytest.mark.parametrize("headers", [[], [(b"extra-parameters", b"error")]])
def test_extras_are_an_error_by_default(headers: Headers) -> None:
    response = refused(chat(**EXTRAS), *headers)
    body = json.loads(response.body)
    assert (response.status, ms_code(response)) == (400, "unknown_parameter")
    assert all(f"'{name}'" in body["message"] for name in EXTRAS)


def test_extras_default_is_configurable_and_the_header_comes_first() -> None:
    lenient = create("azure", Settings(extras="drop"))
    assert read(chat(x=1), dialect=lenient).dropped == ("x",)
    assert read(chat(x=1), (b"extra-parameters", b"pass-through"), dialect=lenient).dropped == ()


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


def test_an_unknown_policy_is_refused() -> None:
    response = refused(chat(), (b"extra-parameters", b"allow"))
    assert (response.status, json.loads(response.body)["param"]) == (400, "extra-parameters")


@pytest.mark.parametrize(
    ("header", "model", "expected"),
    [(b"blue", "m", "blue"), (b"blue", None, "blue"), (None, "m", "m"), (b" ", "m", "m"), (None, None, None)],
)
def test_the_deployment_header_comes_first(header: bytes | None, model: str | None, expected: str | None) -> None:
    headers = [] if header is None else [(b"azureml-model-deployment", header)]
    assert read(chat(model=model), *headers).model == expected


@pytest.mark.parametrize(
    ("part", "sent"),
    [
        ({"type": "text", "text": "a"}, {"type": "text", "text": "a"}),
        ({"type": "text", "content": "a"}, {"type": "text", "text": "a"}),
        (
            {"type": "image", "content": "https://x/y.png", "detail": "low"},
            {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}},
        ),
        (
            {"type": "image_url", "content": "data:image/png;base64,AAA"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAA"}},
        ),
        (
            {"type": "image", "content": PNG},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        ),
        (
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAA", "detail": "low"}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAA", "detail": "low"}},
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "AAA", "format": "wav"}},
            {"type": "input_audio", "input_audio": {"data": "AAA", "format": "wav"}},
        ),
        (
            {"type": "audio_url", "audio_url": {"url": "http://x"}},
            {"type": "audio_url", "audio_url": {"url": "http://x"}},
        ),
    ],
)
def test_both_shapes_of_content_parts(part: Any, sent: Any) -> None:
    content = [{"type": "text", "text": "look"}, part]
    found = to_worker(read({"messages": [{"role": "user", "content": content}]}))
    assert found["messages"][0]["content"][1] == sent


@pytest.mark.parametrize(
    ("part", "loc", "value"),
    [
        (
            {"type": "image", "content": "not an image!"},
            ["body", "messages", "0", "content", "1", "content"],
            "not an image!",
        ),
        (
            {"type": "smell", "content": "x"},
            ["body", "messages", "0", "content", "1"],
            '{"type":"smell","content":"x"}',
        ),
    ],
)
def test_content_that_no_model_understands(part: Any, loc: list[str], value: str) -> None:
    content = [{"type": "text", "text": "look"}, part]
    response = refused({"messages": [{"role": "user", "content": content}]})
    assert response.status == 422
    assert json.loads(response.body)["detail"] == {"loc": loc, "value": value, "input": value}


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "image", "content": "http://x/y.png", "detail": "huge"}, "messages.0.content.0.detail"),
        ({"type": "image", "content": PNG, "detail": ""}, "messages.0.content.0.detail"),
        (
            {"type": "image_url", "image_url": {"url": "http://x/y.png", "detail": "huge"}},
            "messages.0.content.0.image_url.detail",
        ),
    ],
)
def test_a_detail_that_the_specification_does_not_have(part: Any, param: str) -> None:
    response = refused({"messages": [{"role": "user", "content": [part]}]})
    body = json.loads(response.body)
    assert (response.status, body["param"], ms_code(response)) == (400, param, "invalid_value")


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


# -- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", Kind)
def test_the_error_table_is_total_and_each_shape_is_as_specified(kind: Kind) -> None:
    response = DIALECT.refuse(GatewayError(kind, "why", param="temperature", retry_after=2.0), None, None)[0]
    status, phrase, code = ERRORS[kind]
    body = json.loads(response.body)
    assert (response.status, body["status"], body["error"], body["message"]) == (
        status,
        status,
        phrase,
        body["message"],
    )
    assert ms_code(response) == code
    expected = ["code", "error", "message", "param", "status"]
    if status == 422:
        expected = ["code", "detail", "error", "message", "status"]
    elif status in (401, 404, 429):
        expected = ["error", "message", "status"]
    assert sorted(body) == expected
    # azure-ai-inference retries whatever carries Retry-After.
    assert (response.header(b"retry-after") is not None) == (status in (429, 503))


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("temperature", 3, 422),
        ("temperature", -1, 400),
        ("temperature", "hot", 400),
        ("temperature", True, 400),
        ("top_p", 1.5, 422),
        ("frequency_penalty", -2.5, 422),
        ("presence_penalty", 99, 422),
        ("max_tokens", 0, 400),
        ("max_tokens", 1.5, 400),
        ("seed", "x", 400),
        ("stop", 5, 400),
        ("stream", "yes", 400),
        ("tool_choice", "maybe", 400),
        ("tools", [{"type": "robot"}], 400),
        ("response_format", {"type": "poem"}, 400),
        ("messages", [], 400),
        ("messages", "hi", 400),
        ("model", 5, 400),
    ],
)
def test_bad_values(name: str, value: Any, status: int) -> None:
    response = refused(chat() | {name: value})
    body = json.loads(response.body)
    assert response.status == status
    if status == 422:
        text = json.dumps(value)
        assert (body["code"], body["detail"]) == (
            "parameter_not_supported",
            {"loc": ["body", name], "value": text, "input": text},
        )
    else:
        assert body["param"].split(".")[0] == name


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"messages":[],}', b"\xff", b"[" * 5000])
def test_bad_json(body: bytes) -> None:
    assert refused(body).status == 400


def worker_error(message: str, param: str | None) -> GatewayError:
    body = {"error": {"message": message, "type": "BadRequestError", "param": param, "code": 400}}
    return Vllm().fault(Response(400, [], json.dumps(body).encode()))


@pytest.mark.parametrize(
    ("error", "body", "status", "loc", "value"),
    [
        (worker_error("too many", "stop"), chat(stop=["a"]), 422, ["body", "stop"], '["a"]'),
        (worker_error("no top_k", "top_k"), chat(top_k=5), 422, ["body", "top_k"], "5"),
        (
            worker_error('"auto" tool choice requires --enable-auto-tool-choice and more', None),
            chat(tools=[1]),
            422,
            ["body", "tools"],
            "[1]",
        ),
        (
            worker_error("This model's maximum context length is 8 tokens", "input_tokens"),
            chat(),
            422,
            ["body", "messages"],
            '[{"role":"user","content":"hi"}]',
        ),
        (
            GatewayError(Kind.UNSUPPORTED, "no", param="response_format", value="json_object"),
            chat(response_format={"type": "json_object"}),
            422,
            ["body", "response_format"],
            "json_object",
        ),
        (worker_error("not ours", "stream_options"), chat(), 400, None, None),
        (worker_error("no name", None), chat(), 400, None, None),
    ],
)
def test_what_the_worker_cannot_do(error: GatewayError, body: Any, status: int, loc: Any, value: Any) -> None:
    response = DIALECT.refuse(error, request(body), None)[0]
    assert response.status == status
    found = json.loads(response.body)
    if loc is not None:
        assert found["detail"] == {"loc": loc, "value": value, "input": value}


def test_a_long_value_is_cut() -> None:
    long = chat(messages=[{"role": "user", "content": "x" * 5000}])
    response = DIALECT.refuse(GatewayError(Kind.CONTEXT_LENGTH, "too long"), request(long), None)[0]
    assert len(json.loads(response.body)["detail"]["value"]) == 1025


# -- replies --------------------------------------------------------------------------------------------------------


def frame(choices: list[Any], **more: Any) -> bytes:
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "w", "choices": choices, **more}
    return b"data: " + json.dumps(head).encode() + b"\n\n"


def delta(finish: str | None = None, **members: Any) -> bytes:
    return frame([{"index": 0, "delta": members, "logprobs": None, "finish_reason": finish, "token_ids": None}])


STREAM = [
    delta(role="assistant", content=""),
    delta(content="h\u2028i"),
    delta(content=" you"),
    delta("stop", content=""),
    frame([], usage={"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}),
    b"data: [DONE]\n\n",
]


def lane(**members: Any) -> EventLane:
    op = read(chat(stream=True, **members), (b"extra-parameters", b"pass-through"))
    op.model = "m"
    return EventLane(Vllm().reader(op), DIALECT.writer(op))


def chunk(delta: str, reason: str = "null") -> bytes:
    text = (
        '{"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'
        f'{delta},"logprobs":null,"finish_reason":{reason}}}]}}'
    )
    return b"data: " + text.encode() + b"\n\n"


WANTED = [
    chunk('{"role":"assistant","content":""}'),
    chunk('{"content":"h\\u2028i"}'),
    chunk('{"content":" you"}'),
    chunk("{}", '"stop"'),
    b"",
    b"data: [DONE]\n\n",
]


def test_sample_reply() -> None:
    worker = {
        "id": "1234567890",
        "object": "chat.completion",
        "created": 1234567890,
        "model": "w",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "No, it has never been proved",
                    "refusal": None,
                    "reasoning": None,
                },
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
            }
        ],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": {"prompt_tokens": 205, "total_tokens": 210, "completion_tokens": 5, "prompt_tokens_details": None},
        "kv_transfer_params": None,
    }
    op = read(SAMPLE_REQUEST)
    op.model = "llama2-70b-chat"
    reply = fold(Vllm().read(Response(200, [], json.dumps(worker).encode()), op))
    response = DIALECT.write(reply, op)
    # The specification prints it with spaces: member order and values are compared, the blanks are not.
    assert response.body.decode() == json.dumps(json.loads(SAMPLE_REPLY), separators=(",", ":"))
    assert response.header(b"content-type") == b"application/json"


def test_a_reply_of_tool_calls_and_thinking() -> None:
    message = {
        "role": "assistant",
        "content": None,
        "reasoning": "hm",
        "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    worker = {"id": "1", "created": 1, "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    op = read(chat())
    reply = fold(Vllm().read(Response(200, [], json.dumps(worker).encode()), op))
    choice = json.loads(DIALECT.write(reply, op).body)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    expected = {name: message[name] for name in ("role", "reasoning", "tool_calls")}
    assert choice["message"] == expected | {"reasoning_content": "hm", "content": ""}, "content is a string"


def test_stream() -> None:
    found = lane()
    assert [found.feed(piece) for piece in STREAM] == WANTED
    assert found.done
    assert found.error is None
    assert found.usage is not None
    assert found.usage.output == 2
    assert (b"content-type", b"text/event-stream") in found.headers


def test_usage_in_the_stream_when_asked_for() -> None:
    found = lane(stream_options={"include_usage": True})
    pieces = [found.feed(piece) for piece in STREAM]
    usage = json.loads(b"".join(pieces).split(b"\n\n")[-3].removeprefix(b"data: "))
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


def test_every_line_is_one_that_the_client_reads() -> None:
    """azure-ai-inference raises at any line that is neither blank nor `data: …`, and at CR."""
    found = lane()
    stream = b"".join(STREAM).replace(b"data: ", b": ping\ndata:").replace(b"\n", b"\r\n")
    out = found.feed(stream) + found.keepalive()
    assert found.done
    assert b"\r" not in out
    assert all(not line or line.startswith(b"data: ") for line in out.split(b"\n"))


@pytest.mark.parametrize("frames", range(len(STREAM)))
@pytest.mark.parametrize("part", [0, 9])
def test_a_cut_stream_never_looks_whole(frames: int, part: int) -> None:
    found = lane()
    out = b"".join(found.feed(piece) for piece in STREAM[:frames])
    out += found.feed(STREAM[frames][:part]) + found.eof()
    assert out == b"".join(WANTED[:frames])
    assert found.error is not None
    assert found.error.kind is Kind.TRUNCATED
    last = found.fail(found.error)
    message = b"the worker's reply ended before it was complete"
    assert last == b'data: {"error":{"code":"upstream_truncated","message":"%b"}}\n\n' % message
    assert not found.clean_end


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("tool_calls", "tool_calls"),
        ("content_filter", "content_filter"),
        ("repetition", "stop"),
        ("function_call", "tool_calls"),
    ],
)
def test_finish_reasons_are_the_four(word: str, reason: str) -> None:
    found = lane()
    found.feed(STREAM[0])
    assert found.feed(delta(word)) == chunk("{}", f'"{reason}"')


@pytest.mark.parametrize("word", ["abort", "error"])
def test_a_generation_given_up_is_a_failure(word: str) -> None:
    found = lane()
    found.feed(STREAM[0])
    assert found.feed(delta(word)) == b""
    assert found.error is not None


# -- the other paths ------------------------------------------------------------------------------------------------


def read_embed(body: Any) -> Embed:
    op = DIALECT.read(request(body, route="embed"))
    assert isinstance(op, Embed)
    return op


def test_embeddings() -> None:
    op = read_embed({"input": ["x"], "dimensions": 2, "encoding_format": "float", "input_type": "text", "model": "m"})
    assert to_worker(op) == {"input": "x", "encoding_format": "float", "dimensions": 2, "model": "w"}
    worker = {
        "model": "w",
        "data": [{"index": 0, "embedding": [0.1, 0.2]}],
        "usage": {"prompt_tokens": 1, "total_tokens": 1},
    }
    found = Vllm().read_embeddings(Response(200, [], json.dumps(worker).encode()), op)
    body = json.loads(DIALECT.write(found, op).body)
    assert list(body) == ["id", "object", "data", "model", "usage"]
    assert body["data"] == [{"index": 0, "object": "embedding", "embedding": [0.1, 0.2]}]
    assert (body["object"], body["model"], body["usage"]["prompt_tokens"]) == ("list", "m", 1)
    found.usage = None
    assert json.loads(DIALECT.write(found, op).body)["usage"] is None


@pytest.mark.parametrize(("name", "value"), [("encoding_format", "int8"), ("input_type", "query")])
def test_embeddings_that_no_worker_makes(name: str, value: str) -> None:
    response = refused({"input": ["x"], name: value}, route="embed")
    assert response.status == 422
    assert json.loads(response.body)["detail"] == {"loc": ["body", name], "value": value, "input": value}


@pytest.mark.parametrize(
    "error",
    [
        GatewayError(Kind.UNSUPPORTED, "this model makes no embeddings"),
        GatewayError(Kind.UPSTREAM, "the worker rejected the gateway's request (404)", upstream=404),
        GatewayError(Kind.BAD_REQUEST, "The model does not support Embeddings API", upstream=400),
    ],
)
def test_a_model_without_embeddings_is_a_404(error: GatewayError) -> None:
    op = read_embed({"input": ["x"]})
    response = DIALECT.refuse(error, request({"input": ["x"]}, route="embed"), op)[0]
    assert response.status == 404
    assert json.loads(response.body) == {
        "error": "Not Found",
        "message": "Modality not supported by the model: it makes no embeddings",
        "status": 404,
    }


def test_info() -> None:
    asked = request(None, (b"azureml-model-deployment", b"m"), route="info", method="GET")
    op = DIALECT.read(asked)
    assert isinstance(op, ListModels)
    assert (op.model, op.one) == ("m", True)
    cards = [ModelCard("m", 1, True), ModelCard("alias", 1, True, alias_of="m")]
    body = json.loads(op.write(cards).body)
    assert body == {"model_name": "m", "model_type": "chat_completion", "model_provider_name": "dragoman"}
    card = ModelCard("e", 1, True, features=frozenset({"embeddings"}))
    assert json.loads(op.write([card]).body)["model_type"] == "embeddings"


@pytest.mark.parametrize(
    ("cards", "kind"), [([], Kind.NO_MODEL), ([ModelCard("a", 1, True), ModelCard("b", 1, True)], Kind.BAD_REQUEST)]
)
def test_info_of_none_or_many(cards: list[ModelCard], kind: Kind) -> None:
    op = DIALECT.read(request(None, route="info", method="GET"))
    assert isinstance(op, ListModels)
    with pytest.raises(GatewayError) as caught:
        op.write(cards)
    assert caught.value.kind is kind
