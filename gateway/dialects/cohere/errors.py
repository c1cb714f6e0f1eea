"""Errors in Cohere's form: clients choose their class by the status, and show the message."""

from __future__ import annotations

from typing import Any

from gateway.core.errors import GatewayError
from gateway.core.fields import own_name, own_words
from gateway.core.http import Request, Response
from gateway.core.messages import Op
from gateway.dialects._shared.faults import refusal
from gateway.dialects.cohere.fields import FIELDS
from gateway.wire.json import sent_names
from gateway.wire.openai.replies import refusals


def refuse(error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
    """(the answer, its code). A field has the name that the client knows."""
    fields = FIELDS["chat"]
    sent = sent_names(request.body) if request is not None else frozenset[str]()
    code = error.code or refusals.ERRORS[error.kind][2]
    body: dict[str, Any] = {"message": own_words(error, fields, sent), "code": code}
    if error.param is not None:
        body["param"] = own_name(error.param, fields, sent)
    if request is not None:
        body["id"] = request.id
    return refusal(error, refusals.status_of(error), body), code
