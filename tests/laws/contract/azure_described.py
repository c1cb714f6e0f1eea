"""The models of azure-ai-inference as types that can be read strictly: its own classes check nothing."""

from __future__ import annotations

import datetime
import enum
import typing
from importlib import import_module
from types import NoneType, UnionType
from typing import Any

from azure.ai.inference import models
from pydantic import create_model

_models: Any = import_module("azure.ai.inference.models._models")


def described(kind: Any) -> Any:
    """A type with the members of `kind` by their names on the wire. Those that may be None may be absent."""
    hints = typing.get_type_hints(kind, vars(_models) | {"_models": models})
    fields: dict[str, Any] = {}
    for name, field in kind({})._attr_to_rest_field.items():  # the library has no public table
        # the name on the wire is in it alone
        fields[field._rest_name] = _on_the_wire(hints[name]), None if NoneType in typing.get_args(hints[name]) else ...
    return create_model(kind.__name__, **fields)


def _on_the_wire(hint: Any) -> Any:
    outer = typing.get_origin(hint)
    if outer is not None:
        inner = tuple(_on_the_wire(one) for one in typing.get_args(hint))
        return typing.Union[inner] if outer in (typing.Union, UnionType) else outer[inner]  # noqa: UP007
    if hint is datetime.datetime:
        return int  # seconds
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return str  # which words there are grows with the API
    return described(hint) if hasattr(hint, "_attr_to_rest_field") or hasattr(hint, "_deserialize") else hint
