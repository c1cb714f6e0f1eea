"""The context of a model and its adapters, as a server of OpenAI's wire lists them at `/v1/models`.

OpenAI's own list has neither. vLLM (0.33.0, `entrypoints/openai/protocol.py`, `ModelCard`) and SGLang add
`max_model_len` to each model. vLLM lists each LoRA adapter that is loaded as a model, whose `parent` is the name of the
model that it belongs to, or what its `--lora-modules` calls that: then as a rule the model's `root`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

from gateway.core.ports import Facts
from gateway.wire.json import decoded
from gateway.wire.openai.replies import views as wire

PATH = "/v1/models"

_Tokens = Annotated[int, Meta(ge=1, le=2**31 - 1)]


_MOST_ADAPTERS = 1_000
_MOST_MODELS = 100
_LONGEST_NAME = 256


class _NamedIn(Struct):
    id: str
    parent: Any = None
    root: Any = None


class _ModelIn(Struct):
    max_model_len: _Tokens | None = None


class _ListIn(Struct):
    data: list[Raw]


_list = msgspec.json.Decoder(_ListIn)
_named = msgspec.json.Decoder(_NamedIn).decode
_model = msgspec.json.Decoder(_ModelIn)


def facts_of(body: bytes, model: str) -> Facts:
    """The context of `model` (the worker's name) and its adapters from the answer at `PATH`, or which other models are
    there. Unknown if the model is
    not listed or its entry has none. Entries of other models may have any form; adapters with odd names are left out.

    Raises GatewayError(UPSTREAM) if the answer is not such a list, or if the context is not a positive number.
    """
    context: int | None = None
    names, listed = [model], False
    others: list[_NamedIn] = []
    for entry in wire.decoded(body, _list).data:
        named = decoded(_named, entry)
        if named is None:
            continue
        if named.id != model:
            others.append(named)
        elif not listed:
            listed, context = True, wire.decoded(entry, _model).max_model_len
            names += [named.root] if isinstance(named.root, str) else []
    adapters = (one.id for one in others if one.parent in names and _is_name(one.id))
    found = Facts(max_model_len=context, adapters=tuple(islice(adapters, _MOST_ADAPTERS)))
    return found if listed else replace(found, others=_models(others))


def _models(listed: Sequence[_NamedIn]) -> tuple[str, ...]:
    """A name of each model that is not an adapter. vLLM lists all names of its one model, with the same root."""
    found: dict[str, str] = {}
    for one in listed:
        if not isinstance(one.parent, str) and _is_name(one.id):
            found.setdefault(one.root if isinstance(one.root, str) else one.id, one.id)
    return tuple(islice(found.values(), _MOST_MODELS))


def _is_name(text: str) -> bool:
    return 0 < len(text) <= _LONGEST_NAME and text.isprintable()
