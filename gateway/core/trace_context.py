"""W3C Trace Context (https://www.w3.org/TR/trace-context/): which trace a client's request belongs to.

Only valid headers are passed on to workers.
"""

from __future__ import annotations

import re

from gateway.core.http import Headers, header_value

_PARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}\Z")
_NEWER_PARENT = re.compile(_PARENT.pattern.removesuffix(rb"\Z") + rb"-[!-~]{1,128}\Z")
_KEY = rb"[a-z0-9][a-z0-9_*/-]{0,240}(?:@[a-z][a-z0-9_*/-]{0,13})?"
_VALUE = rb"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_MEMBER = re.compile(_KEY + rb"=" + _VALUE + rb"\Z")
_MOST_MEMBERS = 32
_MOST_BYTES = 512


def trace_context(headers: Headers) -> Headers:
    """The headers `traceparent` and `tracestate` in `headers`, if they are valid; [] without a valid `traceparent`. A
    `tracestate` that is not valid, or longer than 512 bytes, is left out."""
    parent = header_value(headers, b"traceparent")
    if parent is None:
        return []
    parents = [value for name, value in headers if name == b"traceparent"]
    if len(parents) > 1 or not (
        _PARENT.match(parent) or (not parent.startswith(b"00") and _NEWER_PARENT.match(parent))
    ):
        return []
    state = _state([value for name, value in headers if name == b"tracestate"])
    return [(b"traceparent", parent), (b"tracestate", state)] if state else [(b"traceparent", parent)]


def _state(values: list[bytes]) -> bytes:
    """One list of `values`, b"" where it is empty or not valid."""
    if sum(map(len, values)) > _MOST_BYTES:
        return b""
    members = [member.strip(b" \t") for value in values for member in value.split(b",")]
    members = [member for member in members if member]
    keys = {member.partition(b"=")[0] for member in members}
    if len(keys) < len(members) or len(members) > _MOST_MEMBERS or not all(map(_MEMBER.match, members)):
        return b""
    return b",".join(members)
