"""Refusals of values, and the replies that carry errors."""

from __future__ import annotations

from typing import Any

from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import Tables, own_name
from gateway.core.http import JSON_TYPE, Request, Response, header_value
from gateway.core.messages import CountTokens, Embed, Op
from gateway.wire.json import bad_value, encode, sent_names
from gateway.wire.openai.replies import refusals


def wrong(param: str, why: str) -> GatewayError:
    """The error for a value that the API does not allow. Its message begins with the parameter in quotes."""
    return bad_value(param, f"'{param}' {why}")


def wrong_at(param: str, why: str) -> GatewayError:
    """The same, with a message in Anthropic's and OpenAI's form for a member of a conversation."""
    return bad_value(param, f"{param}: {why}")


def unsupported(param: str, why: str) -> GatewayError:
    """The error for a value that the API allows and no worker can do, with a message as of `wrong`."""
    return GatewayError(Kind.UNSUPPORTED, f"'{param}' {why}", param=param)


def in_own_words(
    error: GatewayError, param: str | None, fields: Tables, request: Request | None, op: Op | None
) -> tuple[str, str | None]:
    """(the message of `error`, the client's name for the canonical `param`, in the operations `chat`, `count` and
    `embed`). A message without that name gets it as its beginning."""
    if param is None:
        return error.message, None
    table = fields["count" if isinstance(op, CountTokens) else "embed" if isinstance(op, Embed) else "chat"]
    name = own_name(param, table, sent_names(request.body) if request is not None else ())
    message = error.message.replace(f"'{error.param}'", f"'{name}'")
    return (message if name in message else f"{name}: {message}"), name


def cannot_count(error: GatewayError, request: Request | None) -> bool:
    """True if the path of counts is refused: clients that get a 404 there estimate."""
    return error.kind is Kind.UNSUPPORTED and request is not None and request.route == "count"


def refusal(error: GatewayError, status: int, body: Any) -> Response:
    """The reply with an error: `body` as JSON, and the headers that say when to try again."""
    return Response(status, [JSON_TYPE, *refusals.error_headers(error, status)], encode(body))


def add_header_once(request: Request, name: bytes, value: bytes) -> None:
    """Adds a header to every reply to `request`, unless it is there: a request may be read twice."""
    if header_value(request.reply, name) is None:
        request.reply = [*request.reply, (name, value)]
