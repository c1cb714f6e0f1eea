"""Client JSON in, gateway JSON out: one decoder policy for every dialect.

Strict JSON (RFC 8259) in UTF-8; the top level must be an object. Top-level members are kept as raw JSON text, so that
nothing is lost on a wire that can carry them; the typed view of the same bytes validates what is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from operator import is_not
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import ExtrasPolicy, sort_extras
from gateway.core.http import Request
from gateway.core.messages import Extra
from gateway.wire.bulk import refuse_bulk

T = TypeVar("T")
D = TypeVar("D")
R = TypeVar("R")

encode = msgspec.json.Encoder().encode
_members = msgspec.json.Decoder(dict[str, Raw])
_items = msgspec.json.Decoder(list[Raw])
# msgspec reads `Raw | None` as "null only": an optional raw member is a Raw that defaults to this.
NULL = Raw(b"null")
# Member names seen before that are no other spelling of `model`: to look them up is cheaper than to look at them.
_harmless: set[str] = set()
_MOST_NAMES = 1000
# At the top of a body. Each is looked at by itself.
_MOST_MEMBERS = 1000
_anything = msgspec.json.Decoder()
# The letters of `model` as JSON may write them too.
_ESCAPED = tuple(
    (b"\\u006" + digit, letter)
    for digits, letter in ((b"dD", b"m"), (b"fF", b"o"), (b"4", b"d"), (b"5", b"e"), (b"cC", b"l"))
    for digit in (digits[:1], digits[1:])
    if digit
)
_SEPARATORS = (("\u2028".encode(), b"\\u2028"), ("\u2029".encode(), b"\\u2029"), ("\u0085".encode(), b"\\u0085"))
# Members in which numbers are a user's own, whatever they look like.
_FREE = frozenset({"messages", "tools", "response_format", "format", "metadata"})
_FRACTION = re.compile(rb"[.eE]")
# msgspec names the place as `$.messages[0].content`
_PLACE = re.compile(r"^(.*?)(?: - at `(?:key in )?\$\.?(.*)`)?$", re.S)


def members(request: Request) -> dict[str, Raw]:
    """The body's top-level members as raw JSON text, without those that are null: friendli-client, langchain and
    text-generation send null for whatever their caller did not set.

    Raises GatewayError: MEDIA_TYPE for a content encoding other than identity; BAD_REQUEST for malformed JSON, a body
    that is not an object, more values than `refuse_bulk` allows, or a `model` given twice or in another letter case (a
    worker behind us might read the other one than we authorised).
    """
    coding = request.header(b"content-encoding")
    if coding is not None and coding.strip().lower() not in (b"", b"identity"):
        raise GatewayError(
            Kind.MEDIA_TYPE, "compressed request bodies are not accepted", code="unsupported_content_encoding"
        )
    body = request.body
    refuse_bulk(body)
    try:
        if not body.isascii():
            body.decode()  # msgspec does not look into what it hands out raw
        top = _members.decode(body)
        if len(top) > _MOST_MEMBERS:
            raise GatewayError(
                Kind.BAD_REQUEST, f"the request body has more than {_MOST_MEMBERS} members", code="too_many_values"
            )
        if _models(body) > 1:
            _refuse_duplicate_model(body, top)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _malformed(body, error) from None
    if not _harmless.issuperset(top):
        _refuse_other_models(top)
    return {name: raw for name, raw in top.items() if raw != NULL} if b"null" in body else top


def _refuse_other_models(top: dict[str, Raw]) -> None:
    for name in top:
        if name != "model" and name.strip().lower() == "model":
            raise GatewayError(
                Kind.BAD_REQUEST,
                f"unknown parameter '{name}': did you mean 'model'?",
                param=name,
                code="ambiguous_model",
            )
        if len(_harmless) < _MOST_NAMES and len(name) < 64:
            _harmless.add(name)


def present(raw: Raw) -> Raw | None:
    """None for JSON's null."""
    return None if raw == NULL else raw


def require_json(request: Request) -> None:
    """Raises GatewayError(MEDIA_TYPE) when the body is declared to be something else than JSON."""
    declared = request.header(b"content-type")
    if declared is not None and declared != b"application/json":
        kind = declared.split(b";", 1)[0].strip().lower()
        if kind and kind != b"application/json" and not kind.endswith(b"+json"):
            raise GatewayError(Kind.MEDIA_TYPE, "the content type must be application/json")


def typed(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """The typed view of a body that `members` accepted. Raises GatewayError(BAD_REQUEST) naming the field."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _malformed(body, error) from None


def invalid(error: Exception, at: str = "") -> GatewayError:
    """A msgspec validation error as the client should read it, of a value that stands at `at` (`messages.0`)."""
    match = _PLACE.match(str(error))
    assert match is not None
    what, place = match.group(1), match.group(2)
    # `[3]` is an item, `[...]` some value of a mapping.
    place = re.sub(r"\[(\d+)\]", r".\1", place or "").replace("[...]", ".?").lstrip(".")
    param = f"{at}.{place}".strip(".") or None
    missing = re.match(r"Object missing required field `(\w+)`", what)
    if missing:
        param = f"{param}.{missing.group(1)}" if param else missing.group(1)
        return GatewayError(
            Kind.BAD_REQUEST, f"missing required parameter: '{param}'", param=param, code="missing_parameter"
        )
    where = f"'{param}': " if param else ""
    what = what[:1].lower() + what[1:]
    return GatewayError(Kind.BAD_REQUEST, f"invalid value for {where}{what}", param=param, code="invalid_value")


def settle_unknown(
    raw: dict[str, Raw], known: frozenset[str], policy: ExtrasPolicy, *, kind: Kind = Kind.BAD_REQUEST
) -> tuple[Extra, tuple[str, ...]]:
    """(the members of `raw` that are not `known` and are kept, names of those that are dropped). The latter are taken
    out of `raw`: what was dropped must not be read either, where it has a meaning for us.

    Raises GatewayError: of `kind` for unknown members under policy "error", BAD_REQUEST for a value that is no JSON.
    """
    if known.issuperset(raw):
        return {}, ()
    kept, dropped = sort_extras(policy, (name for name in raw if name not in known), kind=kind)
    for name in dropped:
        del raw[name]
    extra = {name: raw[name] for name in kept}
    check_depth(extra)
    return extra, dropped


def check_depth(values: dict[str, Raw]) -> None:
    """Parses members that only pass through, so that nothing malformed or bottomless reaches a worker.

    Raises GatewayError(BAD_REQUEST) naming the member.
    """
    for name, raw in values.items():
        if not valid(raw):
            raise GatewayError(Kind.BAD_REQUEST, f"'{name}' is not valid JSON", param=name, code="invalid_json")


def valid(raw: Raw) -> bool:
    """Whether a value that was kept as it was written is JSON all through, and no deeper than JSON is read."""
    try:
        _anything.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True


def one_line(text: bytes) -> bytes:
    """JSON text without the characters beyond ASCII at which some readers of lines split (Python's `str.splitlines`, so
    httpx's `iter_lines` too): they are written as escapes. Those within ASCII are escaped in any JSON."""
    if text.isascii():
        return text
    for character, escape in _SEPARATORS:
        text = text.replace(character, escape)
    return text


def encode_line(value: Any) -> bytes:
    """`value` as JSON on one line, for every reader."""
    return one_line(encode(value))


def whole_numbers(read: Callable[[D, Request], R]) -> Callable[[D, Request], R]:
    """Reads `100.0` where an integer is expected, as JSON Schema and vLLM do, by reading a request that was refused for
    it once more, with integers in such places. They are passed on as integers."""

    @wraps(read)
    def again(dialect: D, request: Request) -> R:
        try:
            return read(dialect, request)
        except GatewayError as error:
            if error.code != "invalid_value" or "got `float`" not in error.message or not _make_whole(request):
                raise
        return read(dialect, request)

    return again


def _make_whole(request: Request) -> bool:
    """Whether the body had such numbers, outside of members that are a user's own JSON."""
    top = _members.decode(request.body)
    changed = False
    for name, raw in top.items():
        if name not in _FREE and _FRACTION.search(raw):
            value = _anything.decode(raw)
            whole = _whole(value)
            if whole is not value:
                top[name] = Raw(encode(whole))
                changed = True
    if changed:
        request.body = encode(top)
    return changed


def _whole(value: Any) -> Any:
    """`value` itself where it has no such numbers."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list):
        items = [_whole(item) for item in value]
        return items if any(map(is_not, items, value)) else value
    if isinstance(value, dict):
        inner = {name: _whole(item) for name, item in value.items()}
        return inner if any(inner[name] is not value[name] for name in value) else value
    return value


def sent_names(body: bytes) -> frozenset[str]:
    """The names of the members of a body, and dotted those of the objects right inside it; none of what is no JSON."""
    try:
        top = _members.decode(body)
        inner = [(name, _members.decode(raw)) for name, raw in top.items() if bytes(memoryview(raw)[:1]) == b"{"]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return frozenset()
    return frozenset(top).union(*([f"{name}.{key}" for key in found] for name, found in inner))


def find(body: bytes, place: str) -> Raw | None:
    """The value at the dotted `place` (`messages.0.content`), of which no more is decoded than the way to it; None
    where there is none."""
    raw: Raw | None = Raw(body)
    try:
        for key in place.split("."):
            if raw is None:
                return None
            start = bytes(memoryview(raw)[:64]).lstrip()[:1]
            if start == b"[" and key.isdecimal():
                items = _items.decode(raw)
                raw = items[int(key)] if int(key) < len(items) else None
            else:
                raw = _members.decode(raw).get(key)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return raw


def _malformed(body: bytes, error: Exception) -> GatewayError:
    if isinstance(error, msgspec.ValidationError):
        return GatewayError(Kind.BAD_REQUEST, "the request body must be a JSON object", code="invalid_json")
    if isinstance(error, RecursionError):
        return GatewayError(Kind.BAD_REQUEST, "the request body is nested too deeply", code="invalid_json")
    if isinstance(error, UnicodeDecodeError):
        return GatewayError(Kind.BAD_REQUEST, "the request body is not UTF-8", code="invalid_json")
    if not body.strip():
        return GatewayError(
            Kind.BAD_REQUEST, "the request body is empty; a JSON object is required", code="invalid_json"
        )
    what = str(error).removeprefix("JSON is malformed: ")
    return GatewayError(Kind.BAD_REQUEST, f"the request body is not valid JSON: {what}", code="invalid_json")


def _refuse_duplicate_model(body: bytes, top: dict[str, Raw]) -> None:
    # The decoder keeps the last of duplicate members. Every `"model"`, its letters escaped or not, that is not inside a
    # kept value is a key of ours (or sits in a dropped duplicate): more than one of those means it was given twice.
    inside = sum(_models(bytes(raw)) for raw in top.values())
    if _models(body) - inside > 1:
        raise GatewayError(Kind.BAD_REQUEST, "'model' is given twice", param="model", code="ambiguous_model")


def _models(text: bytes) -> int:
    """How often `"model"` stands in `text`, its letters escaped or not."""
    if b"\\u006" in text:
        for escape, letter in _ESCAPED:
            text = text.replace(escape, letter)
    return text.count(b'"model"')
