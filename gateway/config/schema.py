"""The tree of options as a JSON Schema: for editors, and for the pages and charts that are made from it."""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core.core_schema import ModelSchema

from gateway.config.available import Available
from gateway.config.model import Config
from gateway.config.section import Section

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"

Json = dict[str, Any]


class _Described(GenerateJsonSchema):
    """Adds the docstring below each option as its description."""

    def model_schema(self, schema: ModelSchema) -> Json:
        found = super().model_schema(schema)
        cls = schema["cls"]
        for name, text in _texts(cls).items():
            if name in cls.model_fields:
                found["properties"][cls.model_fields[name].alias or name]["description"] = text
        if issubclass(cls, Section) and cls.ANY_OF:
            found["anyOf"] = [{"required": [name]} for name in cls.ANY_OF]
        return found


def _texts(section: type[BaseModel]) -> dict[str, str]:
    """Option -> its description. The source is read only here, so that importing a section costs nothing for it."""
    found = {}
    for kind in reversed(section.__mro__[: section.__mro__.index(BaseModel)]):
        (node,) = ast.parse(inspect.getsource(kind)).body
        for option, text in pairwise(node.body if isinstance(node, ast.ClassDef) else ()):
            match option, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    found[name] = " ".join(words.split())
                case _:
                    pass
    return found


_BOUNDS = {"gt": "exclusiveMinimum", "ge": "minimum", "le": "maximum", "lt": "exclusiveMaximum"}


def json_schema(known: Available | None = None) -> Json:
    """JSON Schema, draft 2020-12, of gateway.yaml. With `known`, names of dialects and backends are closed."""
    schema = Config.model_json_schema(schema_generator=_Described)
    _tidy(schema)
    del schema["properties"]["auth"]["default"]  # it depends on whether there are keys
    for name in ("limits", "budgets"):
        if name in schema["properties"]:
            schema["properties"][name]["type"] = ["array", "null"]
    if known is not None:
        if known.dialects:
            schema["properties"]["dialects"]["propertyNames"] = {"enum": sorted(known.dialects)}
        if known.backends:
            schema["$defs"]["Model"]["properties"]["backend"]["enum"] = sorted(known.backends)
    return {
        "$schema": SCHEMA_DIALECT,
        "title": "gateway.yaml",
        "description": "The configuration of the Dragoman gateway.",
        **{name: value for name, value in schema.items() if name not in ("title", "description")},
    }


def _tidy(node: Any) -> None:
    """Drops titles, which only repeat the names, names bounds as JSON Schema does, and lets sections be empty, as
    `load` does."""
    if isinstance(node, list):
        for item in node:
            _tidy(item)
    if not isinstance(node, dict):
        return
    if isinstance(node.get("title"), str):
        del node["title"]
    for mark, word in _BOUNDS.items():  # pydantic leaves those of an optional number as they are
        if isinstance(bound := node.get(mark), int | float):
            del node[mark]
            for one in node.get("anyOf", [node]):
                if one.get("type") != "string":
                    one[word] = bound
    if isinstance(node.get("properties"), dict) and node.get("type") == "object":
        node["type"] = "object" if node.get("required") or "anyOf" in node else ["object", "null"]
    elif "additionalProperties" in node and node.get("type") == "object" and node.get("default") == {}:
        node["type"] = ["object", "null"]
    for value in node.values():
        _tidy(value)
