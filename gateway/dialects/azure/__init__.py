"""Azure AI Model Inference: chat completions and embeddings, streamed and whole, and the model's card.

Sources: "Reference: Chat Completions" of 2024-05-03 (docs/dialects/azure.md); azure-ai-inference 1.0.0b9 and
@azure-rest/ai-inference 1.0.0-beta.6 as recorded clients. Decisions where those two disagree are in the same document.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import ExtrasPolicy, Field
from gateway.core.http import JSON_TYPE, Request, Response, Route
from gateway.core.lifecycle import Embeddings, Reply, ReplyChoice
from gateway.core.messages import (
    Chat,
    Embed,
    Extra,
    Generate,
    Image,
    ListModels,
    ModelCard,
    Op,
    Part,
    Sampling,
    Text,
)
from gateway.core.ports import Passthrough
from gateway.wire import images, sse
from gateway.wire.json import NULL, encode, members, require_json, settle_unknown
from gateway.wire.openai import reading as requests
from gateway.wire.openai import writing as replies
from gateway.wire.openai.request_views import CHAT_MEMBERS, FORMS, part_form
from gateway.wire.unknown import Form, KnownMembers, known_to

_MODEL = Field("model", "consumed", note="names the pool; the header azureml-model-deployment comes first", sample="m")
_DEPLOYMENT = Field("azureml-model-deployment", "consumed", note="header; names the pool")
_VERSION = Field("api-version", "consumed", note="query, required: YYYY-MM-DD or YYYY-MM-DD-preview")
_EXTRAS = Field(
    "extra-parameters", "consumed", note="header: pass-through, ignore (also drop) or error, which is the default"
)

FIELDS: Mapping[str, Sequence[Field]] = {
    "chat": (
        _VERSION,
        _EXTRAS,
        _DEPLOYMENT,
        Field("messages", "mapped", note="role developer becomes system", sample=[{"role": "user", "content": "hi"}]),
        Field("frequency_penalty", "mapped", note="0 is sent when absent", sample=0.5),
        Field("max_tokens", "mapped", sample=16),
        _MODEL,
        Field("presence_penalty", "mapped", note="0 is sent when absent", sample=0.5),
        Field("response_format", "mapped", note="type text is not sent", sample={"type": "json_object"}),
        Field("seed", "mapped", sample=7),
        Field("stop", "mapped", note="sent as an array", sample=["END"]),
        Field("stream", "mapped", sample=True),
        Field("temperature", "mapped", note="1 is sent when absent", sample=0.5),
        Field("tool_choice", "mapped", note="without tools named as dropped, 400 if it asks for one", sample="auto"),
        Field(
            "tools",
            "mapped",
            note="an empty array is dropped",
            sample=[{"type": "function", "function": {"name": "f"}}],
        ),
        Field("top_p", "mapped", note="1 is sent when absent", sample=0.9),
    ),
    "embed": (
        _VERSION,
        _EXTRAS,
        _DEPLOYMENT,
        Field("input", "mapped", sample=["hi"]),
        _MODEL,
        Field("dimensions", "mapped", sample=8),
        Field("encoding_format", "mapped", note="float and base64; 422 to others", sample="float"),
        Field("input_type", "refused", note="422, unless it is text, which is what a worker assumes", sample="query"),
    ),
}
# Headers and the query have no sample.
_KNOWN = {
    operation: frozenset(field.name for field in fields if field.sample is not None)
    for operation, fields in FIELDS.items()
}

ERRORS: Mapping[Kind, tuple[int, str, str]] = {
    kind: (status, phrase, "parameter_not_supported" if kind is Kind.UNSUPPORTED else kind.value)
    for kind, status, phrase in (
        (Kind.BAD_REQUEST, 400, "Bad Request"),
        (Kind.UNSUPPORTED, 422, "Unprocessable Content"),
        (Kind.UNAUTHENTICATED, 401, "Unauthorized"),
        (Kind.FORBIDDEN, 403, "Forbidden"),
        (Kind.NO_ROUTE, 404, "Not Found"),
        (Kind.NO_METHOD, 405, "Method Not Allowed"),
        (Kind.NO_MODEL, 404, "Not Found"),
        (Kind.MEDIA_TYPE, 415, "Unsupported Media Type"),
        (Kind.TOO_LARGE, 413, "Content Too Large"),
        (Kind.CONTEXT_LENGTH, 422, "Unprocessable Content"),
        (Kind.LIMITED, 429, "Too Many Requests"),
        (Kind.OVERLOADED, 503, "Service Unavailable"),
        (Kind.NO_WORKER, 503, "Service Unavailable"),
        (Kind.DRAINING, 503, "Service Unavailable"),
        (Kind.TIMEOUT, 504, "Gateway Timeout"),
        (Kind.UPSTREAM, 502, "Bad Gateway"),
        (Kind.TRUNCATED, 502, "Bad Gateway"),
        (Kind.CLIENT_GONE, 499, "Client Closed Request"),
        (Kind.INTERNAL, 500, "Internal Server Error"),
    )
}
"""Here the second member is the body's `error`, the description. The code is also in x-ms-error-code."""
# NotFoundError, TooManyRequestsError and UnauthorizedError have three keys only.
_BRIEF = frozenset({401, 404, 429})

_VERSION_PARAMETER = re.compile(rb"(?:^|&)api-version=([^&]*)")
_API_VERSION = re.compile(rb"\d{4}-\d{2}-\d{2}(-preview)?\Z")
_POLICIES: Mapping[str, ExtrasPolicy] = {"pass-through": "pass", "ignore": "drop", "drop": "drop", "error": "error"}
# Allowed by the specification whatever the number, which promises a 422 where a model takes less.
_RANGED = frozenset({"temperature", "top_p", "frequency_penalty", "presence_penalty"})
_LONGEST_VALUE = 1024
_FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_DETAILS = frozenset({None, "auto", "low", "high"})


class _PartIn(Struct):
    type: str
    content: Raw = NULL


class _OwnTextIn(Struct, forbid_unknown_fields=True):
    type: str
    content: str


class _OwnImageIn(_OwnTextIn, forbid_unknown_fields=True):
    detail: str | None = None


_part = msgspec.json.Decoder(_PartIn)
_own_text = msgspec.json.Decoder(_OwnTextIn)
_own_image = msgspec.json.Decoder(_OwnImageIn)
# What the specification and the recorded clients have; no model is promised to understand anything else.
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_PART_TYPES = frozenset({"text", "image", "image_url", "input_audio", "audio_url"})


class Azure:
    """The dialect `azure`."""

    name = "azure"
    prefixes: tuple[str, ...] = ("/azure",)
    extras: ExtrasPolicy = "error"
    routes: tuple[Route, ...] = (
        Route("POST", "/chat/completions", "chat"),
        Route("POST", "/models/chat/completions", "chat"),
        Route("POST", "/embeddings", "embed"),
        Route("POST", "/models/embeddings", "embed"),
        Route("GET", "/info", "info"),
        Route("GET", "/models/info", "info"),
    )
    fields = FIELDS
    errors = ERRORS
    # A worker's chunk has keys, finish reasons and framings that this API does not have.
    passthrough: Mapping[str, Passthrough] = {}

    # -- requests ---------------------------------------------------------------------------------------------------

    def read(self, request: Request) -> Op | ListModels:
        _check_version(request)
        deployment = (request.header(b"azureml-model-deployment") or b"").decode("latin-1").strip() or None
        if request.route == "info":
            return ListModels(write=_info, model=deployment, one=True)
        require_json(request)
        raw = members(request)
        policy = self._policy(request)
        extra, dropped = settle_unknown(raw, _KNOWN[request.route], policy)
        body = encode(raw) if dropped else request.body
        op: Chat | Embed = (
            _read_chat(body, raw, extra, dropped, policy)
            if request.route == "chat"
            else _read_embed(body, raw, extra, dropped)
        )
        op.model = deployment or op.model
        return op

    def _policy(self, request: Request) -> ExtrasPolicy:
        asked = request.header(b"extra-parameters")
        if asked is None:
            return self.extras
        word = asked.decode("latin-1").strip().lower()
        if word not in _POLICIES:
            raise GatewayError(
                Kind.BAD_REQUEST,
                "the header 'extra-parameters' must be 'pass-through', 'ignore', 'drop' or 'error'",
                param="extra-parameters",
                code="invalid_header",
            )
        return _POLICIES[word]

    # -- replies ----------------------------------------------------------------------------------------------------

    def write(self, reply: Reply | Embeddings, op: Op) -> Response:
        if isinstance(reply, Embeddings):
            vectors = [
                {"index": index, "object": "embedding", "embedding": vector}
                for index, vector in enumerate(reply.vectors)
            ]
            body: dict[str, Any] = {
                "id": f"embd-{secrets.token_hex(12)}",
                "object": "list",
                "data": vectors,
                "model": replies.shown(op, reply.model),
                "usage": replies.write_usage(reply.usage) if reply.usage is not None else None,
            }
            return Response(200, [JSON_TYPE], encode(body))
        body = {
            "id": reply.start.id,
            "model": replies.shown(op, reply.start.model),
            "choices": [_write_choice(choice) for choice in reply.choices],
            "created": reply.start.created,
            "object": "chat.completion",
        }
        if reply.start.fingerprint is not None:
            body["system_fingerprint"] = reply.start.fingerprint
        body["usage"] = replies.write_usage(reply.usage) if reply.usage is not None else None
        return Response(200, [JSON_TYPE], encode(body))

    def writer(self, op: Generate) -> replies.StreamWriter:
        """The specification has no schema of a chunk: they are OpenAI's, as the recorded clients expect."""
        return replies.StreamWriter(op, self.error_event)

    # -- errors -----------------------------------------------------------------------------------------------------

    def error_event(self, error: GatewayError) -> bytes:
        """azure-ai-inference skips it in silence: what its caller notices is the cut connection that follows."""
        code = error.code or self.errors[error.kind][2]
        return sse.frame(encode({"error": {"code": code, "message": error.message}}))

    def refuse(self, error: GatewayError, request: Request | None, op: Op | None) -> Response:
        kind, message = _kind(error, request, op), error.message
        if kind is Kind.NO_ROUTE:
            why = error.message if error.kind is kind else "it makes no embeddings"
            message = f"Modality not supported by the model: {why}"
        error.kind = kind
        if kind in (Kind.NO_ROUTE, Kind.UNSUPPORTED):
            error.code = None  # the specification has one word for each
        status, phrase, code = self.errors[kind]
        code = error.code or code
        body: dict[str, Any] = {"error": phrase, "message": message, "status": status}
        if status == 422:
            body["code"] = code
            body["detail"] = _detail(error, request, op)
        elif status not in _BRIEF:
            body = {"code": code, "error": phrase, "message": message, "param": error.param, "status": status}
        headers = [JSON_TYPE, (b"x-ms-error-code", code.encode()), *replies.error_headers(error, status)]
        return Response(status, headers, encode(body))


# -- requests to canonical ------------------------------------------------------------------------------------------


def _check_version(request: Request) -> None:
    found = _VERSION_PARAMETER.search(request.query)
    if found is None or not found[1]:
        raise GatewayError(
            Kind.BAD_REQUEST,
            "The api-version query parameter (?api-version=) is required for all requests.",
            param="api-version",
            code="MissingApiVersionParameter",
        )
    if not _API_VERSION.match(found[1]):
        raise GatewayError(
            Kind.BAD_REQUEST,
            "The api-version query parameter must have the form YYYY-MM-DD or YYYY-MM-DD-preview.",
            param="api-version",
            code="InvalidApiVersionParameter",
        )


def _read_chat(
    body: bytes, raw: dict[str, Raw], unknown: Extra, dropped: tuple[str, ...], policy: ExtrasPolicy
) -> Chat:
    extra = {name: value for name, value in unknown.items() if name not in CHAT_MEMBERS}
    op = requests.read_chat(body, raw, extra, dropped, policy, part=_read_part, forms=_FORMS)
    op.raw = op.wire = None  # The specification's own content parts and its defaults would be lost on the way
    for index, message in enumerate(op.messages):
        if message.role not in _ROLES:
            raise GatewayError(
                Kind.UNSUPPORTED,
                f"this model does not understand messages of role '{message.role}'",
                param=f"messages.{index}.role",
            )
    for index, tool in enumerate(op.tools):
        if not _FUNCTION_NAME.fullmatch(tool.name):
            raise _forbidden(f"tools.{index}.function.name", "must be 1 to 64 of a-z, A-Z, 0-9, underscores and dashes")
    # The SDK knows the role developer, chat templates hardly do; the specification has no tool_call_id.
    op.messages = requests.answer_calls(
        tuple(
            msgspec.structs.replace(message, role="system") if message.role == "developer" else message
            for message in op.messages
        )
    )
    op.sampling = _with_defaults(op.sampling)
    return op


def _read_embed(body: bytes, raw: dict[str, Raw], unknown: Extra, dropped: tuple[str, ...]) -> Embed:
    for name, allowed in (("encoding_format", (b'"float"', b'"base64"')), ("input_type", (b'"text"',))):
        if name in raw and bytes(raw[name]) not in allowed:
            words = b" or ".join(allowed).decode().replace('"', "'")
            raise GatewayError(Kind.UNSUPPORTED, f"'{name}' must be {words} here", param=name)
    extra = {name: value for name, value in unknown.items() if name != "user"}
    op = requests.read_embed(body, raw, extra, dropped)
    op.raw = op.wire = None
    return op


def _with_defaults(sampling: Sampling) -> Sampling:
    """The specification's defaults, said aloud: vLLM would take the model's generation_config for what is absent."""
    return msgspec.structs.replace(
        sampling,
        temperature=1.0 if sampling.temperature is None else sampling.temperature,
        top_p=1.0 if sampling.top_p is None else sampling.top_p,
        frequency_penalty=sampling.frequency_penalty or 0.0,
        presence_penalty=sampling.presence_penalty or 0.0,
    )


def _read_part(raw: Raw, place: str) -> Part:
    """The specification's `{type, content, detail}` or the OpenAI form that the SDK sends."""
    found = requests.read_at(place, raw, _part)
    part: Part
    if found.type not in _PART_TYPES:
        raise GatewayError(
            Kind.UNSUPPORTED, f"this model does not understand content of type '{found.type[:64]}'", param=place
        )
    if found.content == NULL:
        part = requests.read_part(raw, place)
        if isinstance(part, Image):
            _check_detail(part, f"{place}.image_url.detail")
        return part
    if found.type == "text":
        return Text(requests.read_at(place, raw, _own_text).content)
    if found.type in ("image", "image_url"):
        image = requests.read_at(place, raw, _own_image)
        url = images.as_url(image.content)
        if url is not None:
            part = Image(url, image.detail)
            _check_detail(part, f"{place}.detail")
            return part
    raise GatewayError(
        Kind.UNSUPPORTED,
        "image content must be a URL (http, https or data) or the base64 of a PNG, JPEG, GIF, WebP or BMP image",
        param=f"{place}.content",
    )


def _check_detail(image: Image, place: str) -> None:
    if image.detail not in _DETAILS:
        raise _forbidden(place, "must be 'auto', 'low' or 'high'")


def _forbidden(param: str, why: str) -> GatewayError:
    """A value that the specification does not allow."""
    return GatewayError(Kind.BAD_REQUEST, f"'{param}' {why}", param=param, code="invalid_value")


def _part_form(members: Mapping[str, Raw]) -> KnownMembers | None:
    """What `_read_part` knows of a part."""
    if members.get("content", NULL) == NULL:
        return part_form(members)
    return known_to(_OwnTextIn if bytes(members.get("type", NULL)) == b'"text"' else _OwnImageIn)


_FORMS: Mapping[str, Form] = {**FORMS, "content": _part_form}


# -- canonical to replies -------------------------------------------------------------------------------------------


def _info(cards: Sequence[ModelCard]) -> Response:
    if not cards:
        raise GatewayError(Kind.NO_MODEL, "no model is served here")
    found = [card for card in cards if card.alias_of is None] or cards
    if len(found) != 1:
        raise GatewayError(
            Kind.BAD_REQUEST,
            "several models are served here: name one in the header 'azureml-model-deployment'",
            param="azureml-model-deployment",
            code="missing_parameter",
        )
    features = found[0].features or frozenset()
    kind = "embeddings" if features == {"embeddings"} else "chat_completion"
    body = {"model_name": found[0].name, "model_type": kind, "model_provider_name": "dragoman"}
    return Response(200, [JSON_TYPE], encode(body))


def _write_choice(choice: ReplyChoice) -> dict[str, Any]:
    message = replies.write_message(choice)
    if message["refusal"] is None:
        del message["refusal"]
    body: dict[str, Any] = {"index": choice.index, "finish_reason": choice.reason, "message": message}
    if choice.logprobs:
        body["logprobs"] = {"content": replies.join_logprobs(choice.logprobs)}
    return body


# -- errors ---------------------------------------------------------------------------------------------------------


def _kind(error: GatewayError, request: Request | None, op: Op | None) -> Kind:
    """The row of the error table: finer than `error.kind` where the specification is.

    A 400 is a request that the specification does not allow; a 422 one that it allows and the model cannot do. So a
    worker's 400 that names a field the client sent is a 422, and so is a number that is only out of our range.
    """
    if isinstance(op, Embed) and _no_embeddings(error):
        return Kind.NO_ROUTE
    if error.kind is not Kind.BAD_REQUEST or error.param is None:
        return error.kind
    found, value = _look_up(request, error.param)
    if error.upstream is not None and found:
        return Kind.UNSUPPORTED
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if error.param in _RANGED and number and not (error.param == "temperature" and value < 0):
        return Kind.UNSUPPORTED
    return error.kind


def _no_embeddings(error: GatewayError) -> bool:
    """The model makes none: by its configuration, or as its worker says (no such path, or vLLM's words)."""
    return (
        (error.kind is Kind.UNSUPPORTED and error.param is None)
        or error.upstream == 404
        or (error.upstream == 400 and "does not support Embeddings" in error.message)
    )


def _detail(error: GatewayError, request: Request | None, op: Op | None) -> dict[str, Any]:
    """The specification's Detail; `input` is what Microsoft's example and its Python sample call the value."""
    param = error.param or ""
    if error.kind is Kind.CONTEXT_LENGTH:
        param = "input" if isinstance(op, Embed) else "messages"
    value = error.value if error.value is not None else _look_up(request, param)[1]
    text = value if isinstance(value, str) else encode(value).decode()
    text = text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "…"
    return {"loc": ["body", *(param.split(".") if param else ())], "value": text, "input": text}


def _look_up(request: Request | None, param: str) -> tuple[bool, Any]:
    """(whether the client sent its top-level member, the value at dotted `param` or None)."""
    if request is None or not param:
        return False, None
    try:
        value = msgspec.json.decode(request.body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False, None
    keys = param.split(".")
    sent = isinstance(value, dict) and keys[0] in value
    for key in keys:
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return sent, None
    return sent, value
