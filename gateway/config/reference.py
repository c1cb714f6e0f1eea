"""The tree of options as a JSON Schema for editors and as tables for docs/configuration.md."""

from __future__ import annotations

import ast
import inspect
import re
from itertools import pairwise
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core.core_schema import ModelSchema

from gateway.config.available import Available
from gateway.config.model import Config

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"
BEGIN, END = "<!-- options: begin -->", "<!-- options: end -->"

Json = dict[str, Any]

_KINDS = {
    "boolean": "`true`, `false`",
    "integer": "whole number",
    "number": "number",
    "object": "mapping of texts",
    "string": "text",
}


class _Described(GenerateJsonSchema):
    """Adds the docstring below each option as its description."""

    def model_schema(self, schema: ModelSchema) -> Json:
        found = super().model_schema(schema)
        for name, text in _texts(schema["cls"]).items():
            found["properties"][name]["description"] = text
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
    return found


def json_schema(known: Available | None = None) -> Json:
    """JSON Schema, draft 2020-12, of gateway.yaml. With `known`, names of dialects and backends are closed."""
    schema = Config.model_json_schema(schema_generator=_Described)
    _tidy(schema)
    del schema["properties"]["auth"]["default"]  # it depends on whether there are keys
    schema["properties"]["limits"]["type"] = ["array", "null"]
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
    """Drops titles, which only repeat the names, and lets sections be empty, as `load` does."""
    if isinstance(node, list):
        for item in node:
            _tidy(item)
    if not isinstance(node, dict):
        return
    if isinstance(node.get("title"), str):
        del node["title"]
    if isinstance(node.get("properties"), dict) and node.get("type") == "object":
        node["type"] = "object" if node.get("required") or "anyOf" in node else ["object", "null"]
    elif "additionalProperties" in node and node.get("type") == "object" and node.get("default") == {}:
        node["type"] = ["object", "null"]
    for value in node.values():
        _tidy(value)


def reference_markdown() -> str:
    """One table for each section, of every option: its kind, default and meaning."""
    schema = json_schema()
    sections: list[str] = []
    top = [(name, node) for name, node in schema["properties"].items() if _section(node, schema) is None]
    sections.append(_table("At the top", "", top, []))
    for name, node in schema["properties"].items():
        section = _section(node, schema)
        if section is not None:
            path = f"{name}.NAME" if "additionalProperties" in node else f"{name}[]" if "items" in node else name
            sections.append(_section_table(path, node, section))
            for option, inner in section["properties"].items():
                nested = _section(inner, schema)
                if nested is not None and nested is not _section(schema["properties"].get(option, {}), schema):
                    listed = "[]" if "items" in inner else ""
                    sections.append(_section_table(f"{path}.{option}{listed}", inner, nested))
    return "\n".join(sections)


def _section_table(path: str, node: Json, section: Json) -> str:
    text = node.get("description") or section["description"]
    return _table(f"`{path}`", text, [*section["properties"].items()], section.get("required", []))


def documented(page: str) -> str:
    """`page` with what stands between its two markers replaced by the tables."""
    pattern = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    return pattern.sub(lambda _: f"{BEGIN}\n\n{reference_markdown()}\n{END}", page, count=1)


def _section(node: Json, schema: Json) -> Json | None:
    """The section that a top-level option is or, for a mapping of names or a list, holds."""
    inner = node.get("additionalProperties", node.get("items", node))
    if isinstance(inner, dict) and "anyOf" in inner:  # an optional section
        inner = inner["anyOf"][0]
    if not isinstance(inner, dict) or "$ref" not in inner:
        return None
    section: Json = schema["$defs"][inner["$ref"].rsplit("/", 1)[1]]
    return section


def _table(title: str, text: str, options: list[tuple[str, Json]], required: list[str]) -> str:
    lines = [f"### {title}", ""]
    lines += [text, ""] if text else []
    lines += ["| option | value | default | meaning |", "|---|---|---|---|"]
    for name, node in options:
        default = "**required**" if name in required else _default(name, node)
        lines.append(f"| `{name}` | {_kind(name, node)} | {default} | {node['description']} |")
    return "\n".join(lines) + "\n"


def _kind(name: str, node: Json) -> str:
    """The values that an option takes, in words."""
    choices = [one for one in node.get("anyOf", [node]) if one.get("type") != "null"]
    nested = [one for choice in choices for one in choice.get("anyOf", [choice])]
    first = nested[0]
    if "$ref" in first:
        return "section"
    if isinstance(first.get("additionalProperties"), dict) and "$ref" in first["additionalProperties"]:
        return "mapping of sections"
    if "enum" in first:
        return ", ".join(f"`{word}`" for word in first["enum"])
    if first["type"] == "array":
        item = first["items"]
        if "$ref" in item:
            return "list of sections"
        return "list of " + (_kind(name, item) if "enum" in item else "texts")
    if len(nested) > 1:
        return ("duration" if name.endswith("_s") else "size") + _range(first, name)
    kind = first["type"] if isinstance(first["type"], str) else first["type"][0]
    return _KINDS[kind] + _range(first, name)


def _range(node: Json, name: str) -> str:
    signs = {"exclusiveMinimum": ">", "minimum": "≥", "maximum": "≤"}
    bounds = [f"{sign} {_amount(name, node[bound])}" for bound, sign in signs.items() if bound in node]
    return f" {', '.join(bounds)}" if bounds else ""


def _default(name: str, node: Json) -> str:
    if name == "auth":
        return "see right"
    value = node.get("default")
    if value is None or value in ({}, []):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, list):
        return ", ".join(f"`{one}`" for one in value)
    return f"`{_amount(name, value)}`"


def _amount(name: str, value: Any) -> str:
    """A number with its unit, as it may be written in the file."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    units: tuple[tuple[str, int], ...] = ()
    if name.endswith("_bytes"):
        units = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
    elif name.endswith("_s"):
        units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    for unit, size in units:
        if value >= size and value % size == 0 and (unit != "m" or value > 60):
            return f"{value / size:g}{unit}"
    return f"{value:g}" if abs(value) < 1e6 else str(int(value))
