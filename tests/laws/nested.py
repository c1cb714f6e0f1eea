"""Requests of every dialect with objects within objects, and how each member of these fares on the way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from gateway import backends, dialects
from gateway.core.fields import ExtrasPolicy
from gateway.core.ports import Capabilities, Settings
from gateway.translation import offline
from tests.laws.fidelity.matrix import BACKENDS, DIALECTS

CAN = Capabilities("the-model", 4096)
POLICIES: tuple[ExtrasPolicy, ...] = ("pass", "drop", "error")
Place = tuple[str | int, ...]

# Whatever stands in there is carried as it is: schemas, and arguments.
FREE = {"parameters", "schema", "arguments", "input_schema", "input"}
ALWAYS_NAMED = {"anthropic", "responses", "ollama", "gemini", "cohere"}
"""Nothing behind these has a place for what their objects do not define."""
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
    own = {"responses": FREE - {"input"}, "ollama": FREE | {"format"}, "gemini": FREE | google}
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
    if dialect == "ollama":
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
    if dialect == "ollama_style":
        image = {"role": "user", "content": "what", "images": [PNG]}
        body = {**body, "messages": [image, *body["messages"]]}
        del body["stream_options"]
    if dialect == "azure_inference":
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


_ASK: dict[str, Any] = {"role": "user", "content": "hi"}


def _chat(**members: Any) -> dict[str, Any]:
    return {"messages": [_ASK], **members}


_LIMITS: dict[str, Any] = {"max_tokens": 5, "max_completion_tokens": 7}
