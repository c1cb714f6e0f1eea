"""The name of a model in a request that is written, for a worker that serves it by another one."""

from __future__ import annotations

from copy import copy

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from gateway.core.http import Request
from gateway.core.upload import Body

_FIELD = b'name="model"\r\n\r\n'
"""The first text of an upload, as `wire.multipart` writes it."""


class _Named(Struct):
    model: str | UnsetType | None = UNSET


_named = msgspec.json.Decoder(_Named)
_members = msgspec.json.Decoder(dict[str, Raw])


class Renaming(Struct, frozen=True):
    """names: those by which requests for the model may be written; own: the one that the worker gets."""

    names: frozenset[str]
    own: str

    def apply(self, request: Request) -> Request:
        """`request` for the worker: itself where it names another model (an adapter), none, or has the name already.
        Reads the body to its end."""
        if request.upload is not None:
            first, *rest = request.upload.pieces
            renamed = self._of_form(first) if isinstance(first, bytes) else first
            return _with(request, request.body, Body((renamed, *rest), request.upload.source))
        if not request.body:
            return request
        if request.body[:1] != b"{":
            return _with(request, self._of_form(request.body), None)
        try:
            name = _named.decode(request.body).model
        except (msgspec.MsgspecError, ValueError):
            return request  # it was written here, and this cannot be
        if not isinstance(name, str) or name == self.own or name not in self.names:
            return request
        members = _members.decode(request.body)
        members["model"] = Raw(msgspec.json.encode(self.own))
        return _with(request, msgspec.json.encode(members), None)

    def _of_form(self, text: bytes) -> bytes:
        before, field, after = text.partition(_FIELD)
        name, end, rest = after.partition(b"\r\n")
        if not field or name.decode() not in self.names:
            return text
        return before + field + self.own.encode() + end + rest


def _with(request: Request, body: bytes, upload: Body | None) -> Request:
    renamed = copy(request)
    renamed.body, renamed.upload = body, upload
    return renamed
