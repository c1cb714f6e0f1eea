"""What a server of OpenAI's wire says of a model at `/v1/models`.

OpenAI's own list has no context. vLLM (0.33.0, `entrypoints/openai/protocol.py`, `ModelCard`) and SGLang add
`max_model_len` to each model.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.core.ports import Facts
from gateway.wire.openai import answers as wire

PATH = "/v1/models"

_Tokens = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class _NamedIn(Struct):
    id: str


class _ModelIn(Struct):
    max_model_len: _Tokens | None = None


class _ListIn(Struct):
    data: list[Raw]


_list = msgspec.json.Decoder(_ListIn)
_named = msgspec.json.Decoder(_NamedIn)
_model = msgspec.json.Decoder(_ModelIn)


def facts_of(body: bytes, model: str) -> Facts:
    """The context of `model`, by the worker's name for it, from the answer at `PATH`; unknown where that model is not
    listed or says nothing of it. Entries of other models may be of any form.

    Raises GatewayError(UPSTREAM) for what is no such list, or a context that makes no sense.
    """
    try:
        entries = _list.decode(body).data
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise wire.malformed() from None
    for entry in entries:
        try:
            if _named.decode(entry).id != model:
                continue
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue
        try:
            return Facts(max_model_len=_model.decode(entry).max_model_len)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise wire.malformed() from None
    return Facts()
