"""TGI's `/tokenize`: the tokens of a text and their spans in it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from gateway.core.http import JSON_TYPE, Response
from gateway.core.lifecycle import Tokens
from gateway.core.messages import Extra, Tokenize
from gateway.dialects._shared.api import Api
from gateway.wire.json import encode, typed


class _ParametersIn(Struct):
    adapter_id: str | None = None


class _TokenizeIn(Struct):
    inputs: Annotated[str, Meta(min_length=1)]
    model: str | None = None
    parameters: _ParametersIn | None = None


_tokenize = msgspec.json.Decoder(_TokenizeIn)


def read(raw: Extra, api: Api) -> Tokenize:
    """A body of `/generate`, whose parameters choose nothing here but the model. Raises GatewayError(BAD_REQUEST)."""
    extra, dropped = api.settle(raw, "tokenize")
    found = typed(encode(raw), _tokenize)
    named = found.parameters.adapter_id if found.parameters is not None else None
    return Tokenize(
        model=named or found.model, prompt=found.inputs, special=True, spans=True, extra=extra, dropped=dropped
    )


def write(found: Tokens, op: Tokenize) -> Response:
    assert isinstance(op.prompt, str)
    assert found.spans is not None
    texts = [op.prompt[start:end] for start, end in found.spans]
    body = [
        {"id": number, "text": text, "start": start, "stop": end}
        for number, text, (start, end) in zip(found.tokens, texts, found.spans, strict=True)
    ]
    return Response(200, [JSON_TYPE], encode(body))
