"""Azure's requests to canonical ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qs, unquote_to_bytes

import msgspec
from msgspec import Raw, Struct

from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import ExtrasPolicy
from gateway.core.http import Request, header_list
from gateway.core.messages import Chat, Embed, Extra, Image, Part, Text
from gateway.dialects._shared.faults import unsupported, wrong
from gateway.wire import images
from gateway.wire.json import NULL
from gateway.wire.openai.requests import reading
from gateway.wire.openai.requests.messages import answer_calls, read_at, read_part
from gateway.wire.openai.requests.views import CHAT_MEMBERS, FORMS, part_form
from gateway.wire.unknown import Form, KnownMembers, known_to

_API_VERSION = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(-preview)?")
_POLICIES: Mapping[str, ExtrasPolicy] = {"pass-through": "pass", "ignore": "drop", "drop": "drop", "error": "error"}
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
# The roles of the specification and of the recorded clients. Models need not understand any others.
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_PART_TYPES = frozenset({"text", "image", "image_url", "input_audio", "audio_url"})


def check_version(request: Request, default: str | None) -> None:
    """Raises GatewayError(BAD_REQUEST) for an API version that is malformed, or missing without a default."""
    # Clients may percent-encode names and values.
    query = parse_qs(request.query.decode("latin-1"), keep_blank_values=True)
    version = query.get("api-version", [""])[0] or default
    if version is None:
        why, code = "(?api-version=) is required for all requests.", "MissingApiVersionParameter"
    elif not _API_VERSION.fullmatch(version):
        why, code = "must have the form YYYY-MM-DD or YYYY-MM-DD-preview.", "InvalidApiVersionParameter"
    else:
        return
    message = f"The api-version query parameter {why}"
    raise GatewayError(Kind.BAD_REQUEST, message, param="api-version", code=code)


def deployment_of(request: Request) -> str | None:
    """The model named in a header, where non-ASCII characters are percent-encoded."""
    given = request.header(b"azureml-model-deployment") or b""
    return unquote_to_bytes(given.strip()).decode("utf-8", "replace") or None


def policy_of(request: Request, usual: ExtrasPolicy) -> ExtrasPolicy:
    """The policy for unknown members, from a header whose lines are one list (RFC 9110, section 5.3). Raises
    GatewayError(BAD_REQUEST) for an unknown value, and for several."""
    given = header_list(request.headers, b"extra-parameters")
    if given is None:
        return usual
    word, *others = {one.strip() for one in given.decode("latin-1").lower().split(",")}
    if others or word not in _POLICIES:
        message = "the header 'extra-parameters' must be 'pass-through', 'ignore', 'drop' or 'error'"
        raise GatewayError(Kind.BAD_REQUEST, message, param="extra-parameters", code="invalid_header")
    return _POLICIES[word]


def read_chat(body: bytes, raw: dict[str, Raw], unknown: Extra, dropped: tuple[str, ...], policy: ExtrasPolicy) -> Chat:
    """Reads a chat. Raises GatewayError: BAD_REQUEST for what the specification does not allow, UNSUPPORTED for what no
    worker can do."""
    extra = {name: value for name, value in unknown.items() if name not in CHAT_MEMBERS}
    op = reading.read_chat(body, raw, extra, dropped, policy, part=_read_part, forms=_FORMS)
    op.raw = op.wire = None  # passing it on would lose the specification's content parts and defaults
    for index, message in enumerate(op.messages):
        if message.role not in _ROLES:
            why = f"this model does not understand messages of role '{message.role}'"
            raise GatewayError(Kind.UNSUPPORTED, why, param=f"messages.{index}.role")
    for index, tool in enumerate(op.tools):
        if not _FUNCTION_NAME.fullmatch(tool.name):
            raise wrong(f"tools.{index}.function.name", "must be 1 to 64 of a-z, A-Z, 0-9, underscores and dashes")
    op.messages = answer_calls(op.messages)  # the specification has no tool_call_id
    # The specification's defaults: vLLM would take absent values from the model's generation_config.
    given = op.sampling
    op.sampling = msgspec.structs.replace(
        given,
        temperature=1.0 if given.temperature is None else given.temperature,
        top_p=1.0 if given.top_p is None else given.top_p,
        frequency_penalty=given.frequency_penalty or 0.0,
        presence_penalty=given.presence_penalty or 0.0,
    )
    return op


def read_embed(body: bytes, raw: dict[str, Raw], unknown: Extra, dropped: tuple[str, ...]) -> Embed:
    """Reads an embeddings request. Raises as `read_chat`."""
    for name, allowed in (("encoding_format", (b'"float"', b'"base64"')), ("input_type", (b'"text"',))):
        if name in raw and bytes(raw[name]) not in allowed:
            words = b" or ".join(allowed).decode().replace('"', "'")
            raise unsupported(name, f"must be {words} here")
    extra = {name: value for name, value in unknown.items() if name != "user"}
    op = reading.read_embed(body, raw, extra, dropped)
    op.raw = op.wire = None
    return op


def _read_part(raw: Raw, param: str) -> Part:
    """Reads a content part: the specification's `{type, content, detail}`, or the OpenAI form that the SDK sends."""
    found = read_at(param, raw, _part)
    if found.type not in _PART_TYPES:
        why = f"this model does not understand content of type '{found.type[:64]}'"
        raise GatewayError(Kind.UNSUPPORTED, why, param=param)
    if found.content == NULL:
        return _checked(read_part(raw, param), f"{param}.image_url.detail")
    if found.type == "text":
        return Text(read_at(param, raw, _own_text).content)
    if found.type in ("image", "image_url"):
        image = read_at(param, raw, _own_image)
        url = images.as_url(image.content)
        if url is not None:
            return _checked(Image(url, image.detail), f"{param}.detail")
    why = "image content must be a URL (http, https or data) or the base64 of a PNG, JPEG, GIF, WebP or BMP image"
    raise GatewayError(Kind.UNSUPPORTED, why, param=f"{param}.content")


def _checked(part: Part, param: str) -> Part:
    """The part, if it is not an image whose detail, at `param`, the specification does not have."""
    if isinstance(part, Image) and part.detail not in _DETAILS:
        raise wrong(param, "must be 'auto', 'low' or 'high'")
    return part


def _part_form(members: Mapping[str, Raw]) -> KnownMembers | None:
    """The members of a part that `_read_part` reads."""
    if members.get("content", NULL) == NULL:
        return part_form(members)
    return known_to(_OwnTextIn if bytes(members.get("type", NULL)) == b'"text"' else _OwnImageIn)


_FORMS: Mapping[str, Form] = {**FORMS, "content": _part_form}
