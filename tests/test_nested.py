"""Nothing nested is lost in silence: a member that no view knows, put anywhere into a request, reaches the worker where
it stood, or is refused by its place, or is named to the client. For every dialect, backend and extras policy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from gateway import backends, dialects
from gateway.core.fields import ExtrasPolicy
from gateway.core.ports import Capabilities, Settings
from gateway.pipeline.reply import dropped_header as header
from gateway.translation import offline
from tests.clients import like_openai
from tests.fidelity.matrix import BACKENDS, DIALECTS
from tests.harness import Stack

STRAY = "zz_stray"
VALUE = {"deep": [1.5, "zz"]}
CAN = Capabilities("the-model", 4096)
POLICIES: tuple[ExtrasPolicy, ...] = ("pass", "drop", "error")
Place = tuple[str | int, ...]
# Whatever stands in there is carried as it is: schemas, and arguments.
FREE = {"parameters", "schema", "arguments", "input_schema", "input"}

PNG = "iVBORw0KGgo="
_CALL: dict[str, Any] = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
_FORMAT: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "n", "schema": _SCHEMA}}
_CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "be"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {"url": "http://x/y.png", "detail": "low"}},
                {"type": "refusal", "refusal": "no"},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "only"}], "reasoning": "hm"},
        {"role": "assistant", "tool_calls": [_CALL, {**_CALL, "id": "d"}]},
        {"role": "tool", "tool_call_id": "c", "content": "x"},
        {"role": "assistant", "content": "both", "tool_calls": [{**_CALL, "id": "e"}]},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": _SCHEMA}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": _FORMAT,
    "stream": True,
    "stream_options": {"include_usage": True},
}
_AUDIO: dict[str, Any] = {
    "role": "user",
    "content": [{"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}],
}
_TEXT: dict[str, Any] = {"prompt": "hi", "stream": True, "stream_options": {"include_usage": True}}
_FRIENDLI: dict[str, Any] = {
    "prompt": "hi",
    "stop_tokens": [{"tokens": [7]}],
    "bad_word_tokens": [{"tokens": [5]}],
    "response_format": {"type": "json_object", "schema": json.dumps(_SCHEMA)},
}

_MESSAGES: dict[str, Any] = {
    "max_tokens": 16,
    "system": [{"type": "text", "text": "be"}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "b"}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"a": {}}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "x"}]},
    ],
    "tools": [{"name": "f", "description": "d", "input_schema": _SCHEMA}],
    "tool_choice": {"type": "tool", "name": "f"},
    "output_config": {"format": {"type": "json_schema", "schema": _SCHEMA}},
    "metadata": {"user_id": "u"},
    "stream": True,
}
_RESPONSE: dict[str, Any] = {
    "input": [
        {"role": "developer", "content": [{"type": "input_text", "text": "be"}]},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "a"},
                {"type": "input_image", "image_url": "http://x/y.png", "detail": "low"},
            ],
        },
        {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "g"}]},
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "hm"}],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "only"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "d", "name": "h", "namespace": "n", "input": "x"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
        {"type": "custom_tool_call_output", "call_id": "d", "output": "x"},
    ],
    "tools": [
        {"type": "function", "name": "f", "description": "d", "parameters": _SCHEMA},
        {"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "h", "format": {"type": "text"}}]},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": _SCHEMA}},
    "reasoning": {"summary": "auto"},
    "stream": True,
}


_COHERE: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "be"}]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {"url": "http://x/y.png", "detail": "low"}},
            ],
        },
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}], "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "document", "document": {"data": {"a": {}}}}]},
        {"role": "user", "content": "b"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": _SCHEMA}}],
    "documents": [{"id": "d", "data": {"a": {}}}],
    "response_format": {"type": "json_object", "json_schema": _SCHEMA},
    "stream": True,
}


def free(dialect: str) -> set[str]:
    """`FREE` as this dialect has it: the `input` of a response is its prompt, `format` at Ollama's a schema, and Google
    and Cohere have names of their own."""
    google = {"args", "response", "parametersJsonSchema", "responseSchema"}
    own = {"responses": FREE - {"input"}, "ollama_native": FREE | {"format"}, "gemini": FREE | google}
    own["cohere"] = FREE | {"data", "json_schema"}
    return own.get(dialect, FREE)


_OLLAMA: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "what", "images": [PNG]},
        {"role": "assistant", "thinking": "hm", "tool_calls": [{"function": {"name": "f", "arguments": {"a": {}}}}]},
        {"role": "tool", "content": "x", "tool_name": "f"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": _SCHEMA}}],
    "format": _SCHEMA,
    "options": {"temperature": 0.5},
}
# Nothing behind these has a place for what their objects do not define.
_ALWAYS_NAMED = {"anthropic", "responses", "ollama_native", "gemini", "cohere"}
_GEMINI: dict[str, Any] = {
    "systemInstruction": {"parts": [{"text": "be"}]},
    "contents": [
        {
            "role": "user",
            "parts": [
                {"text": "a"},
                {"inlineData": {"mimeType": "image/png", "data": PNG}},
                {"fileData": {"mimeType": "image/png", "fileUri": "http://x/y.png"}},
            ],
        },
        {
            "role": "model",
            "parts": [
                {"text": "hm", "thought": True},
                {"functionCall": {"id": "c", "name": "f", "args": {"a": {}}}, "thoughtSignature": "AA=="},
            ],
        },
        {
            "role": "user",
            "parts": [
                {
                    "functionResponse": {
                        "id": "c",
                        "name": "f",
                        "response": {"output": "x"},
                        "parts": [{"inlineData": {"mimeType": "image/png", "data": PNG}}],
                    }
                }
            ],
        },
    ],
    "tools": [{"functionDeclarations": [{"name": "f", "description": "d", "parameters": _SCHEMA}]}],
    "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
    "generationConfig": {"temperature": 0.5, "responseSchema": _SCHEMA, "thinkingConfig": {"includeThoughts": True}},
}
_TGI: dict[str, Any] = {"inputs": "hi", "stream": True, "parameters": {"details": True, "max_new_tokens": 5}}


def is_free(dialect: str, place: Place) -> bool:
    """Whether it is inside a JSON schema or an object of arguments. The `parameters` of TGI's requests are neither."""
    return bool(free(dialect).intersection(map(str, place[1:] if dialect == "tgi" else place)))


def rich(dialect: str, operation: str, backend: str) -> dict[str, Any]:
    """A request with every kind of object that the dialect reads and the backend can execute."""
    if dialect == "ollama_native":
        return _OLLAMA if operation == "chat" else {"prompt": "hi", "raw": True, "options": {"temperature": 0.5}}
    if (dialect, operation) == ("tgi", "complete"):
        return _TGI
    if operation == "complete":
        body = {**_TEXT, "response_format": _FORMAT} if dialect == "sagemaker" else _TEXT
        body = _FRIENDLI if dialect == "friendli" else body
        lacks = {"tgi": {"stop_tokens", "bad_word_tokens"}, "llamacpp": {"stop_tokens"}}
        lacks["openai"] = {"stop_tokens", "bad_word_tokens", "response_format"} if dialect == "friendli" else set()
        return {name: value for name, value in body.items() if name not in lacks.get(backend, ())}
    if dialect == "anthropic":
        return _MESSAGES
    if dialect == "responses":
        return _RESPONSE
    if dialect == "gemini":
        return _GEMINI
    if dialect == "cohere":
        return _COHERE
    body = _CHAT if backend == "tgi" else {**_CHAT, "messages": [*_CHAT["messages"], _AUDIO]}
    if dialect == "ollama":
        image = {"role": "user", "content": "what", "images": [PNG]}
        body = {**body, "messages": [image, *body["messages"]]}
        del body["stream_options"]
    if dialect == "azure":
        own = [{"type": "text", "content": "a"}, {"type": "image", "content": "http://x/y.png", "detail": "low"}]
        body = {**body, "messages": [{"role": "user", "content": own}, *body["messages"]]}
        body["messages"][2] = {"role": "user", "content": body["messages"][2]["content"][:2]}
        del body["stream_options"]
    return body


PAIRS = [
    pytest.param(dialect, operation, backend, id=f"{dialect}-{operation}-{backend}")
    for dialect, made in DIALECTS.items()
    for operation in made.examples
    if operation in ("chat", "complete")
    for backend in BACKENDS
    # A worker of OpenAI's own wire gives no token ids, which Friendli's completions are made of.
    if (dialect, operation, backend) not in {(one, "complete", "openai") for one in ("friendli", "tgi")}
]


def objects(value: Any, place: Place = ()) -> Iterator[Place]:
    """The places of all objects inside `value`, itself left out."""
    if isinstance(value, dict):
        if place:
            yield place
        for name, inner in value.items():
            yield from objects(inner, (*place, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from objects(inner, (*place, index))


def put(body: dict[str, Any], place: Place, name: str, value: Any) -> dict[str, Any]:
    """`body` with a member more in the object at `place`."""
    changed = json.loads(json.dumps(body))
    target = changed
    for key in place:
        target = target[key]
    target[name] = value
    return changed  # type: ignore[no-any-return]


def found(value: Any, name: str, wanted: Any, place: Place = ()) -> Iterator[Place]:
    """Where the member stands in a worker's request."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == name and inner == wanted:
                yield (*place, key)
            yield from found(inner, name, wanted, (*place, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from found(inner, name, wanted, (*place, index))


def named(place: Place) -> str:
    return "".join("[]" if isinstance(key, int) else f".{key}" for key in place).lstrip(".")


def dotted(place: Place) -> str:
    return ".".join(map(str, place))


def send(
    dialect: str, operation: str, backend: str, body: dict[str, Any], policy: ExtrasPolicy | None = None
) -> offline.Crossing:
    ask = DIALECTS[dialect].examples[operation][0]
    reader = dialects.create(dialect, Settings(extras=policy))
    return offline.send(
        reader, backends.create(backend), json.dumps(body).encode(), CAN, route=ask.route, query=ask.query
    )


class Handling(msgspec.Struct, frozen=True):
    """carried where it stood, moved (carried in an object of the same kind), inside (something carried as it is),
    refused by its place, refused whole (with a field that it is in or beside), named, named whole, or lost; wrong is
    what should not be."""

    word: str
    told: str = ""


def handling(
    dialect: str,
    operation: str,
    backend: str,
    policy: ExtrasPolicy | None,
    body: dict[str, Any],
    place: Place,
    value: Any,
) -> Handling:
    """What becomes of the member at `place`, whose value is `value`."""
    try:
        crossing = send(dialect, operation, backend, body, policy)
    except offline.Refused as refused:
        text = refused.response.body.decode()
        status = refused.response.status
        told = f"{status} {text}"
        if status not in (400, 422) or not any(name in text for name in body):
            return Handling("wrong", told)
        return Handling("refused" if dotted(place) in text else "refused whole", told)
    sent = json.loads(crossing.outgoing.body)
    places = list(found(sent, str(place[-1]), value))
    dropped = (*crossing.op.dropped, *crossing.outgoing.dropped)
    if named(place) in dropped:
        return Handling("wrong", f"named, and sent: {places}") if places else Handling("named")
    if places == [place]:
        return Handling("carried")
    if [named(one) for one in places] == [named(place)]:
        return Handling("moved")
    if is_free(dialect, place) and str(place[-1]) in json.dumps(sent):
        return Handling("inside")
    if place[0] in dropped:
        return Handling("named whole")
    return Handling("lost", json.dumps(sent))


# -- any member, in any object --------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("dialect", "operation", "backend"), PAIRS)
def test_no_object_loses_a_member(dialect: str, operation: str, backend: str, policy: ExtrasPolicy) -> None:
    body = rich(dialect, operation, backend)
    send(dialect, operation, backend, body, policy)  # it is not refused by itself
    places = list(objects(body))
    assert places or (dialect, backend) == ("friendli", "openai")
    wrong = {}
    for place in places:
        member = (*place, STRAY)
        met = handling(dialect, operation, backend, policy, put(body, place, STRAY, VALUE), member, VALUE)
        if met.word not in allowed(dialect, operation, backend, policy, place):
            wrong[dotted(member)] = met
    assert wrong == {}


def allowed(dialect: str, operation: str, backend: str, policy: ExtrasPolicy, place: Place) -> set[str]:
    """What may become of a member in the object at `place`."""
    if is_free(dialect, place):
        return {"carried", "inside"}
    if policy == "error":
        return {"refused"}
    if policy == "drop" or (operation == "complete" and dialect in ("friendli", "tgi")) or dialect in _ALWAYS_NAMED:
        return {"named"}
    if operation == "complete" and backend in ("tgi", "llamacpp"):
        return {"named"}
    if backend == "llamacpp" and place[0] == "tool_choice":
        return {"named"}  # that tool alone with `required`, in place of the name
    if backend != "tgi":
        return {"carried"}
    # Its own format for the output; a message with both text and calls becomes two.
    return {"named"} if place[0] == "response_format" else {"carried", "moved"}


# -- members that clients send --------------------------------------------------------------------------------------

_ASK: dict[str, Any] = {"role": "user", "content": "hi"}
_PART: dict[str, Any] = {"type": "text", "text": "a"}
_TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
_CACHE: dict[str, Any] = {"type": "ephemeral"}


def _message(role: str = "user", **members: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": "hi", **members}]}


def _part(**members: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{**_PART, **members}]}]}


def _tool(**members: Any) -> dict[str, Any]:
    return {"messages": [_ASK], "tools": [{**_TOOL, **members}]}


def _chat(**members: Any) -> dict[str, Any]:
    return {"messages": [_ASK], **members}


def _called(**members: Any) -> dict[str, Any]:
    return {"messages": [_ASK, {"role": "assistant", "tool_calls": [{**_CALL, **members}]}]}


_FIRST, _CONTENT = ("messages", 0), ("messages", 0, "content", 0)
_NAMED: dict[str, Any] = {"name": "f"}
_LIMITS: dict[str, Any] = {"max_tokens": 5, "max_completion_tokens": 7}
SENT: list[tuple[Place, dict[str, Any]]] = [
    ((*_FIRST, "cache_control"), _message(cache_control=_CACHE)),
    ((*_FIRST, "prefix"), _message("assistant", prefix=True)),
    ((*_FIRST, "audio"), _message("assistant", audio={"id": "a1"})),
    ((*_FIRST, "annotations"), _message("assistant", annotations=[{"type": "url_citation"}])),
    ((*_FIRST, "function_call"), _message("assistant", function_call={"name": "f", "arguments": "{}"})),
    ((*_FIRST, "tool_name"), _message("tool", tool_name="f")),
    ((*_FIRST, "thinking"), _message("assistant", thinking="hm")),
    ((*_FIRST, "images"), _message(images=[PNG])),
    ((*_FIRST, "reasoning"), _message("assistant", reasoning="one", reasoning_content="two")),
    ((*_FIRST, "reasoning_content"), _message("assistant", reasoning="one", reasoning_content="two")),
    ((*_CONTENT, "cache_control"), _part(cache_control=_CACHE)),
    ((*_CONTENT, "uuid"), _part(uuid="u-1")),
    ((*_CONTENT, "refusal"), _part(refusal="no")),
    ((*_CONTENT, "image_url"), _part(image_url={"url": "http://x/y.png"})),
    (("tools", 0, "cache_control"), _tool(cache_control=_CACHE)),
    (("tools", 0, "function", "returns"), _tool(function={"name": "f", "returns": {"type": "string"}})),
    (("tool_choice", "mode"), {**_tool(), "tool_choice": {"type": "function", "function": _NAMED, "mode": "hard"}}),
    (
        ("tool_choice", "function", "x"),
        {**_tool(), "tool_choice": {"type": "function", "function": {**_NAMED, "x": 1}}},
    ),
    (("messages", 1, "tool_calls", 0, "index"), _called(index=7)),
    (("messages", 1, "tool_calls", 0, "type"), _called(type="custom")),
    (("messages", 1, "tool_calls", 0, "function", "index"), _called(function={**_CALL["function"], "index": 7})),
    (
        ("response_format", "json_schema", "description"),
        _chat(response_format={**_FORMAT, "json_schema": {**_FORMAT["json_schema"], "description": "what for"}}),
    ),
    (
        ("response_format", "json_schema", "strict"),
        _chat(response_format={**_FORMAT, "json_schema": {**_FORMAT["json_schema"], "strict": True}}),
    ),
    (("response_format", "schema"), _chat(response_format={"type": "json_object", "schema": _SCHEMA})),
    (("response_format", "json_schema"), _chat(response_format={**_FORMAT, "type": "text"})),
    (
        ("stream_options", "continuous_usage_stats"),
        _chat(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}),
    ),
    (("max_tokens",), _chat(**_LIMITS)),
    (("max_completion_tokens",), _chat(**_LIMITS)),
    (("top_logprobs",), _chat(top_logprobs=3)),
    (("top_logprobs",), _chat(logprobs=False, top_logprobs=3)),
    (("tool_choice",), _chat(tool_choice="auto")),
    (("tool_choice",), _chat(tool_choice="required")),
    (("tool_choice",), _chat(tools=[], tool_choice={"type": "function", "function": _NAMED})),
    (("parallel_tool_calls",), _chat(parallel_tool_calls=True)),
    (("parallel_tool_calls",), {**_tool(), "parallel_tool_calls": True}),
]
# What Ollama's API and Friendli's have a place of their own for.
_PLACED = {("ollama", name) for name in ("thinking", "images", "tool_name")} | {("friendli", "schema")}
# What reaches the worker under its other name, as the field tables say.
_RENAMED = {"max_completion_tokens": "max_tokens"}


@pytest.mark.parametrize("policy", [None, *POLICIES])
@pytest.mark.parametrize(("place", "body"), SENT, ids=[named(place) for place, _ in SENT])
def test_what_clients_send_is_not_lost(place: Place, body: dict[str, Any], policy: ExtrasPolicy | None) -> None:
    value = body
    for key in place:
        value = value[key]  # type: ignore[index]
    lost = {}
    for dialect in filter(like_openai, dialects.REGISTRY):
        for backend in BACKENDS:
            met = handling(dialect, "chat", backend, policy, body, place, value)
            if met.word in ("lost", "wrong") and not _elsewhere(dialect, backend, body, place, value, policy):
                lost[dialect, backend] = met
    assert lost == {}


def _elsewhere(
    dialect: str, backend: str, body: dict[str, Any], place: Place, value: Any, policy: ExtrasPolicy | None
) -> bool:
    """Whether it reaches the worker in a place of the dialect's own, or by its other name."""
    sent = json.loads(send(dialect, "chat", backend, body, policy).outgoing.body)
    if (dialect, place[-1]) in _PLACED:
        return json.dumps(value[0] if isinstance(value, list) else value).strip('"') in json.dumps(sent)
    other = _RENAMED.get(str(place[0]))
    return other is not None and sent.get(other) == value


# -- what a client is told ------------------------------------------------------------------------------------------


def test_every_reply_names_what_was_dropped() -> None:
    """What the dialect leaves out, and what the backend does: whole, streamed, and in an error of the worker's."""
    azure = {"dialects": {"azure": {"extras": "pass"}}}
    body = {"model": "m", **_chat(**_LIMITS, tool_choice="auto")}
    wanted = "tool_choice, max_tokens"
    with Stack(config=azure) as stack:
        url = f"{stack.url}/azure/chat/completions?api-version=2024-05-01"
        assert httpx.post(url, json=body).headers["x-dragoman-dropped"] == wanted
        assert httpx.post(url, json={**body, "stream": True}).headers["x-dragoman-dropped"] == wanted
        refused = httpx.post(url, json={**body, "temperature": 0, "n": 2})
        assert (refused.status_code, refused.headers["x-dragoman-dropped"]) == (422, wanted)
        assert "x-dragoman-dropped" not in httpx.post(url, json={"model": "m", "messages": [_ASK]}).headers
        assert [record["dropped"] for record in stack.records()] == [wanted.split(", ")] * 3 + [[]]


def test_names_are_fit_for_a_header_and_bounded() -> None:
    assert header(("messages[].a b\r\n", "x" * 99)) == b"messages[].a?b??, " + b"x" * 64
    assert header(tuple("abc")) == b"a, b, c"
    many = header(tuple(f"n{index}" for index in range(40)))
    assert many.startswith(b"n0, n1, ")
    assert many.endswith(b", n31, +8")


_REPLAYED = "provider_specific_fields"


@pytest.mark.parametrize("policy", [None, *POLICIES])
@pytest.mark.parametrize(
    ("dialect", "backend"), [(one.values[0], one.values[2]) for one in PAIRS if one.values[1] == "chat"]
)
def test_what_client_libraries_replay_is_taken(dialect: str, backend: str, policy: ExtrasPolicy | None) -> None:
    """LiteLLM adds a member to the messages of a reply, and to their calls, and sends both back."""
    body = rich(dialect, "chat", backend)
    turns = ("messages", "input", "contents")
    replayed = [place for place in objects(body) if place[0] in turns and not is_free(dialect, place)]
    messages = [place for place in replayed if len(place) == 2 or "tool_calls" in place]
    assert messages
    for place in messages:
        sent = put(body, place, _REPLAYED, {"x": 1})
        met = handling(dialect, "chat", backend, policy, sent, (*place, _REPLAYED), {"x": 1})
        own_messages = policy == "error" and not like_openai(dialect)
        assert met.word in ({"refused"} if own_messages else {"named", "carried", "moved"}), (place, met)
