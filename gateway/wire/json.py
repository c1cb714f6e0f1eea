"""Client JSON in, gateway JSON out: one decoder policy for every dialect.

Strict JSON (RFC 8259) in UTF-8; the top level must be an object. Top-level members are kept as raw JSON text, so that
nothing is lost towards a worker of the same wire. A typed view of the same bytes validates the known members.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Mapping
from operator import is_not
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import ExtrasPolicy, sort_extras
from gateway.core.http import Request
from gateway.core.messages import Extra
from gateway.wire.bulk import refuse_bulk
from gateway.wire.scan import is_plain

T = TypeVar("T")

encode = msgspec.json.Encoder().encode
members_of = msgspec.json.Decoder(dict[str, Raw]).decode
"""A JSON object -> its members as JSON text. Raises msgspec's errors."""
items_of = msgspec.json.Decoder(list[Raw]).decode
"""A JSON array -> its items as JSON text. Raises msgspec's errors."""
objects_of = msgspec.json.Decoder(list[dict[str, Raw]]).decode
"""A JSON array of objects -> the members of each as JSON text. Raises msgspec's errors."""
_text = msgspec.json.Decoder(str).decode
# msgspec reads `Raw | None` as "null only", so an optional raw member is a Raw with this default.
NULL = Raw(b"null")
# Known member names that are neither another spelling of `model` nor in `_UNREAD_INTEGERS`. A lookup is cheaper
# than a check.
_harmless: set[str] = set()
_MOST_NAMES = 1000
# The most top-level members of a body. Each one is checked separately.
_MOST_MEMBERS = 1000
# The largest object whose names are read to word an error. That happens on the event loop; 64 KiB take some 2 ms.
_MOST_NAMED_BYTES = 1 << 16
_anything = msgspec.json.Decoder()
_within = msgspec.json.Decoder(Raw).decode
# Levels of nesting that a body must leave free. The decoder counts calls under way, too: what decodes the body later
# may stand in more of them. Gemini's nullable schemas get 130 levels more when they are written.
_SPARE = 256
_ESCAPED_QUOTE = rb"\u0022"
# An escaped surrogate without the other half of its pair. An even number of backslashes before it escape each other.
_LONE = re.compile(
    rb"(?<!\\)((?:\\\\)*)\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F][0-9a-fA-F]{2})"
)
# Replaces a lone surrogate while the member that holds it is searched: a noncharacter, in unusual letter case.
_MARK = b"\\uFdD0"
_SEPARATORS = (("\u2028".encode(), b"\\u2028"), ("\u2029".encode(), b"\\u2029"), ("\u0085".encode(), b"\\u0085"))
# Members whose content belongs to the user: numbers in them are never changed.
_FREE = frozenset({"contents", "messages", "tools", "response_format", "format", "text", "metadata"})
# Integers that are passed on unread, so that no view finds that they were written as `1.0`.
_UNREAD_INTEGERS = ("prompt_logprobs", "truncate_prompt_tokens")
_FRACTION = re.compile(rb"[.eE]")
# msgspec writes the path as `$.messages[0].content`.
_PATH = re.compile(r"^(.*?)(?: - at `(?:key in )?\$\.?(.*)`)?$", re.S)


def renamed(body: bytes, names: Mapping[str, str]) -> bytes:
    """A JSON object whose members have other names. One that has the new name already is left out under the old one."""
    found = members_of(body)
    if names.keys().isdisjoint(found):
        return body
    return encode({names.get(name, name): value for name, value in found.items() if names.get(name) not in found})


def members(request: Request) -> dict[str, Raw]:
    """The body's top-level members as raw JSON text. Null members are left out: friendli-client, langchain and
    text-generation send null for each parameter that their caller did not set.

    Raises GatewayError(BAD_REQUEST) for malformed JSON, a body that is not an object, more values than `refuse_bulk`
    allows, an object at any depth with two members of one name, or a `model` in another letter case (a worker might
    then read another model than the authorised one).
    """
    body = request.body
    refuse_bulk(body)
    plain = is_plain(body)
    try:
        if not plain:
            body.decode()  # msgspec does not check the text of raw members
        top = members_of(body)
        if not plain:
            _within(b"[" * _SPARE + body + b"]" * _SPARE)
        if len(top) > _MOST_MEMBERS:
            raise GatewayError(
                Kind.BAD_REQUEST, f"the request body has more than {_MOST_MEMBERS} members", code="too_many_values"
            )
        if not plain:
            _refuse_duplicates(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _malformed(body, error) from None
    if not _harmless.issuperset(top):
        refuse_other_models(top)
        for name in _UNREAD_INTEGERS:
            raw = top.get(name)
            if raw is not None and _FRACTION.search(raw):
                whole = decoded(_in_integers, raw)
                if whole is None:
                    raise _not_json(name)
                top[name] = whole
    return {name: raw for name, raw in top.items() if raw != NULL} if NULL in top.values() else top


def refuse_other_models(top: Iterable[str]) -> None:
    """Raises GatewayError(BAD_REQUEST) for a member that a worker might take for `model`."""
    for name in top:
        if name != "model" and name.strip().lower() == "model":
            raise GatewayError(
                Kind.BAD_REQUEST,
                f"unknown parameter '{name}': did you mean 'model'?",
                param=name,
                code="ambiguous_model",
            )
        if len(_harmless) < _MOST_NAMES and len(name) < 64 and name not in _UNREAD_INTEGERS:
            _harmless.add(name)


def decoded(decode: Callable[[Any], T], text: bytes | str | Raw) -> T | None:
    """The JSON text decoded, or None if it is not JSON of the decoder's type."""
    try:
        return decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def text_in(raw: Raw) -> str | None:
    """A JSON string's text; None if it is not one."""
    return decoded(_text, raw)


def present(raw: Raw) -> Raw | None:
    """`raw`, or None if it is JSON's null."""
    return None if raw == NULL else raw


def text_of(raw: Extra, name: str) -> str | None:
    """The member `name`; None if it is not a string. A service that reads the member itself reports what is wrong with
    that."""
    value = raw.get(name)
    return msgspec.json.decode(value, type=str) if value is not None and bytes(memoryview(value)[:1]) == b'"' else None


def require_json(request: Request) -> None:
    """Raises GatewayError(MEDIA_TYPE) if the content type is not JSON."""
    if request.head.json:
        return
    declared = request.header(b"content-type")
    if declared is not None and declared != b"application/json":
        kind = declared.split(b";", 1)[0].strip().lower()
        if kind and kind != b"application/json" and not kind.endswith(b"+json"):
            raise GatewayError(Kind.MEDIA_TYPE, "the content type must be application/json")
    request.head.json = True


def typed(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """The typed view of a body that `members` accepted. Raises GatewayError(BAD_REQUEST) naming the field."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _malformed(body, error) from None


def bad_value(param: str | None, message: str) -> GatewayError:
    """The error for a parameter with a value that it may not have."""
    return GatewayError(Kind.BAD_REQUEST, message, param=param, code="invalid_value")


def missing(param: str, message: str = "") -> GatewayError:
    """The error for a required parameter that is absent."""
    message = message or f"missing required parameter: '{param}'"
    return GatewayError(Kind.BAD_REQUEST, message, param=param, code="missing_parameter")


def invalid(error: Exception, at: str = "") -> GatewayError:
    """The client's error for a msgspec validation error in the value of the parameter `at` (`messages.0`)."""
    match = _PATH.match(str(error))
    assert match is not None
    what, path = match.group(1), match.group(2)
    # `[3]` is an item of an array, `[...]` any value of a mapping.
    path = re.sub(r"\[(\d+)\]", r".\1", path or "").replace("[...]", ".?").lstrip(".")
    param = f"{at}.{path}".strip(".") or None
    absent = re.match(r"Object missing required field `(\w+)`", what)
    if absent:
        return missing(f"{param}.{absent.group(1)}" if param else absent.group(1))
    where = f"'{param}': " if param else ""
    what = what[:1].lower() + what[1:]
    return bad_value(param, f"invalid value for {where}{what}")


def settle_unknown(
    raw: dict[str, Raw],
    known: frozenset[str],
    policy: ExtrasPolicy,
    *,
    kind: Kind = Kind.BAD_REQUEST,
    binding: Container[str] = (),
) -> tuple[Extra, tuple[str, ...]]:
    """(the unknown members of `raw` that are retained, the names of those dropped). Dropped members are removed
    from `raw`, so that the gateway does not read them either. Members in `binding` are never dropped.

    Raises GatewayError: of `kind` for unknown members under policy "error", BAD_REQUEST for a value that is not JSON.
    """
    if known.issuperset(raw):
        return {}, ()
    retained, dropped = sort_extras(policy, (name for name in raw if name not in known), kind=kind, binding=binding)
    for name in dropped:
        del raw[name]
    extra = {name: raw[name] for name in retained}
    check_depth(extra)
    return extra, dropped


def check_depth(values: dict[str, Raw]) -> None:
    """Parses members that are only passed on, so that no malformed or too deeply nested JSON, and no number that is too
    large, reaches a worker.

    Raises GatewayError(BAD_REQUEST) naming the member.
    """
    for name, raw in values.items():
        if not valid(raw):
            raise _not_json(name)


def _not_json(name: str) -> GatewayError:
    return GatewayError(Kind.BAD_REQUEST, f"'{name}' is not valid JSON", param=name, code="invalid_json")


def valid(raw: str | Raw) -> bool:
    """True if a raw value is valid JSON within the decoder's depth limit."""
    try:
        _anything.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True


def one_line(text: bytes) -> bytes:
    """JSON text in which non-ASCII line separators are escaped. Some clients split lines at them (Python's
    `str.splitlines`, and so httpx's `iter_lines`). JSON already requires the escape of ASCII ones."""
    if text.isascii():
        return text
    for character, escape in _SEPARATORS:
        text = text.replace(character, escape)
    return text


def encode_line(value: Any) -> bytes:
    """`value` as JSON on one line, without any character that a client may take for a line end."""
    return one_line(encode(value))


def made_whole(request: Request, error: GatewayError) -> bool:
    """Whether a request that was refused by `error` must be read once more: `100.0` is accepted for an integer, as by
    JSON Schema and vLLM. Rewrites such numbers in its body as integers, except in members in `_FREE`. If one of these
    members cannot be read, the refusal stands."""
    if error.code != "invalid_value" or "got `float`" not in error.message:
        return False
    top = members_of(request.body)
    changed = False
    for name, raw in top.items():
        if name not in _FREE and _FRACTION.search(raw):
            whole = decoded(_in_integers, raw)
            if whole is None:
                return False
            changed = changed or whole is not raw
            top[name] = whole
    if changed:
        request.body = encode(top)
    return changed


def _in_integers(raw: Raw) -> Raw:
    """`raw` with whole floats as integers; `raw` itself if it has none. Raises as a decoder does."""
    value = _anything.decode(raw)
    whole = _whole(value)
    return raw if whole is value else Raw(encode(whole))


def _whole(value: Any) -> Any:
    """`value` with whole floats as integers; `value` itself if it has none."""
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
    """The names of a body's members, and of the members one level below, as dotted names, except those of objects above
    `_MOST_NAMED_BYTES`. Empty if it is not JSON."""
    try:
        top = members_of(body)
        inner = [
            (name, members_of(raw))
            for name, raw in top.items()
            if bytes(memoryview(raw)[:1]) == b"{" and memoryview(raw).nbytes <= _MOST_NAMED_BYTES
        ]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return frozenset()
    return frozenset(top).union(*([f"{name}.{key}" for key in found] for name, found in inner))


def find(body: bytes, param: str) -> Raw | None:
    """The value of the dotted `param` (`messages.0.content`), or None. Decodes only the path to it."""
    raw: Raw | None = Raw(body)
    try:
        for key in param.split("."):
            if raw is None:
                return None
            start = bytes(memoryview(raw)[:64]).lstrip()[:1]
            if start == b"[" and key.isdecimal():
                items = items_of(raw)
                raw = items[int(key)] if int(key) < len(items) else None
            else:
                raw = members_of(raw).get(key)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return raw


def _malformed(body: bytes, error: Exception) -> GatewayError:
    if isinstance(error, msgspec.ValidationError):
        what = "must be a JSON object"
    elif isinstance(error, RecursionError):
        what = "is nested too deeply"
    elif isinstance(error, UnicodeDecodeError):
        what = "is not UTF-8"
    elif not body.strip():
        what = "is empty; a JSON object is required"
    elif _LONE.search(body):
        return _lone_surrogate(body)
    else:
        what = "is not valid JSON: " + str(error).removeprefix("JSON is malformed: ")
    return GatewayError(Kind.BAD_REQUEST, f"the request body {what}", code="invalid_json")


def _lone_surrogate(body: bytes) -> GatewayError:
    """The error for a body with a lone surrogate. It names the top-level member that holds it."""
    top = decoded(members_of, _LONE.sub(rb"\1" + _MARK.replace(b"\\", b"\\\\"), body)) or {}
    name = next((name for name, raw in top.items() if _MARK in bytes(raw)), None)
    where = f"'{name}'" if name is not None else "the request body"
    message = (
        f"{where} holds a lone surrogate (an escape such as \\ud83d without its other half), which is not a character"
    )
    return GatewayError(Kind.BAD_REQUEST, message, param=name, code="invalid_json")


def _refuse_duplicates(body: bytes) -> None:
    """Raises GatewayError(BAD_REQUEST) for an object anywhere in `body` with two members of one name. Decoders keep the
    last, some workers the first, and a worker that gets the object as it is has both: one text for the guards and
    the estimate, another for the model.

    A member that the decoder has dropped takes at least the two quotes of its name along. So a body that is written
    again with as many quotes has no duplicates, unless escapes added others. Only a body that may have some is read
    object by object.
    """
    try:
        alike = _ESCAPED_QUOTE not in body and encode(_anything.decode(body)).count(b'"') == body.count(b'"')
    except (msgspec.MsgspecError, ValueError, RecursionError):
        alike = False
    if not alike:
        try:
            _pairs(body.decode())
        except ValueError:
            return  # malformed, which the reader of that member reports


def _distinct(pairs: list[tuple[str, object]]) -> None:
    if len(dict(pairs)) != len(pairs):
        known: set[str] = set()
        name = next(name for name, _ in pairs if name in known or known.add(name))  # type: ignore[func-returns-value]
        code = "ambiguous_model" if name == "model" else "duplicate_member"
        raise GatewayError(Kind.BAD_REQUEST, f"{name[:100]!r} is given twice", param=name[:100], code=code)


_pairs = json.JSONDecoder(object_pairs_hook=_distinct, parse_int=bool, parse_float=bool, parse_constant=bool).decode
