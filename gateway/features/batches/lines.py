"""The lines of batches: what clients write of each request, and what they read of its result.

Sources: OpenAI's reference of `/v1/batches` and of its input and output files; Anthropic's reference of
`/v1/messages/batches`; openai-python 3.54 and anthropic-python 2.12 as recorded clients.
"""

from __future__ import annotations

import re
import secrets
from typing import Any, Literal, Protocol

import msgspec
from msgspec import Raw, Struct

from gateway.features.batches.state import Fault, KindOfBatch

Undone = Literal["expired", "cancelled"]

_LONGEST_ID = 512
_ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_encode = msgspec.json.Encoder().encode
_BREAKS = bytes.maketrans(b"\r\n", b"  ")
_UNDONE = {
    "expired": "This request could not be executed before the completion window expired.",
    "cancelled": "This request was not executed, as the batch was cancelled.",
}


class Asked(Struct, frozen=True):
    """One request of a batch. body: JSON."""

    custom_id: str
    body: bytes


class Form(Protocol):
    """The form of one API's lines. All results are lines without their ends."""

    def read(self, text: bytes, endpoint: str) -> Asked | Fault: ...
    def done(self, custom_id: str, status: int, body: bytes, request_id: str) -> bytes:
        """The result of a request that was answered, by this status and JSON."""

    def undone(self, custom_id: str, why: Undone) -> bytes:
        """The result of one that was not."""


class _OpenAILine(Struct):
    custom_id: str
    url: str
    body: Raw
    method: str = "POST"


class OpenAIForm:
    """Input: `{"custom_id", "method", "url", "body"}`. Results: `{"id", "custom_id", "response", "error"}`."""

    _decode = msgspec.json.Decoder(_OpenAILine).decode

    def read(self, text: bytes, endpoint: str) -> Asked | Fault:
        try:
            line = self._decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return Fault("invalid_json_line", f"This line is not a request: {error}")
        if not 1 <= len(line.custom_id) <= _LONGEST_ID:
            return Fault("invalid_custom_id", f"custom_id must have 1 to {_LONGEST_ID} characters.", param="custom_id")
        if line.method != "POST":
            return Fault("invalid_method", "method must be POST.", param="method")
        if line.url != endpoint:
            message = f"url must be the batch's endpoint, {endpoint}."
            return Fault("mismatched_endpoint", message, param="url")
        body = bytes(line.body)
        if not body.startswith(b"{"):
            return Fault("invalid_body", "body must be an object.", param="body")
        return Asked(line.custom_id, body)

    def done(self, custom_id: str, status: int, body: bytes, request_id: str) -> bytes:
        response = {"status_code": status, "request_id": request_id, "body": Raw(one_line(body))}
        return _result(custom_id, response, None)

    def undone(self, custom_id: str, why: Undone) -> bytes:
        return _result(custom_id, None, {"code": f"batch_{why}", "message": _UNDONE[why]})


class _AnthropicLine(Struct):
    custom_id: str
    params: Raw


class AnthropicForm:
    """Input: `{"custom_id", "params"}`, an item of `requests`. Results: `{"custom_id", "result"}`."""

    _decode = msgspec.json.Decoder(_AnthropicLine).decode

    def read(self, text: bytes, endpoint: str) -> Asked | Fault:
        try:
            line = self._decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return Fault("invalid_request", str(error))
        if not _ANTHROPIC_ID.match(line.custom_id):
            return Fault("invalid_request", f"custom_id must match {_ANTHROPIC_ID.pattern[:-2]}", param="custom_id")
        body = bytes(line.params)
        if not body.startswith(b"{"):
            return Fault("invalid_request", "params must be an object", param="params")
        return Asked(line.custom_id, body)

    def done(self, custom_id: str, status: int, body: bytes, request_id: str) -> bytes:
        kind, member = ("succeeded", "message") if status == 200 else ("errored", "error")
        return _encode({"custom_id": custom_id, "result": {"type": kind, member: Raw(one_line(body))}})

    def undone(self, custom_id: str, why: Undone) -> bytes:
        return _encode({"custom_id": custom_id, "result": {"type": "expired" if why == "expired" else "canceled"}})


FORMS: dict[KindOfBatch, Form] = {"openai": OpenAIForm(), "anthropic": AnthropicForm()}


def one_line(body: bytes) -> bytes:
    """JSON on one line: line breaks can only stand between its tokens."""
    return body.translate(_BREAKS)


def _result(custom_id: str, response: dict[str, Any] | None, error: dict[str, str] | None) -> bytes:
    """A line of OpenAI's output file."""
    id_ = f"batch_req_{secrets.token_hex(12)}"
    return _encode({"id": id_, "custom_id": custom_id, "response": response, "error": error})
