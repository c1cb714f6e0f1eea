"""What is made from the gateway's options and metrics: the tables of two pages, and the schema of gateway.yaml.

`make docs` runs `python -m scripts.reference docs/gateway.schema.json`; `scripts.pages` fills the pages.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from gateway.config import json_schema
from gateway.observe.catalogue import GROUPS

Json = dict[str, Any]

_KINDS = {
    "boolean": "`true`, `false`",
    "integer": "whole number",
    "number": "number",
    "object": "mapping of texts",
    "string": "text",
}


def main(file: str) -> None:
    """Writes the schema of gateway.yaml."""
    Path(file).write_text(json.dumps(json_schema(), indent=2) + "\n", encoding="utf-8")


# -- metrics.md -----------------------------------------------------------------------------------------------------


def metrics() -> str:
    """Every metric of the catalogue: its kind, labels, meaning and one query."""
    parts: list[str] = []
    for group in GROUPS:
        parts += [f"## {group.title}", ""]
        parts += [group.text, ""] if group.text else []
        for figure in group.figures:
            labels = ", ".join(f"`{label}`" for label in figure.labels) or "no labels"
            parts += [f"### `{figure.name}`", "", f"{figure.kind.capitalize()}; {labels}.", "", figure.text, ""]
            if figure.bounds:
                parts += ["Buckets: " + ", ".join(f"{bound:g}" for bound in figure.bounds) + ".", ""]
            parts += ["```promql", figure.query, "```", ""]
    return "\n".join(parts)


# -- configuration.md -----------------------------------------------------------------------------------------------


def options() -> str:
    """One table for each section, of every option: its kind, default and meaning."""
    schema = json_schema()
    sections: list[str] = []
    top = [(name, node) for name, node in schema["properties"].items() if _section(node, schema) is None]
    sections.append(_table("At the top", "", top, []))
    for name, node in schema["properties"].items():
        section = _section(node, schema)
        if section is not None:
            path = f"{name}.NAME" if "additionalProperties" in node else f"{name}[]" if "items" in node else name
            sections += _section_tables(path, node, section, schema)
    return "\n".join(sections)


def defaults() -> dict[str, str]:
    """Option -> its default, as the tables have them: `section.option`, and the name alone of those in lists and
    mappings."""
    found: dict[str, str] = {}
    section = ""
    for line in options().splitlines():
        if heading := re.match(r"### `([^`]+)`", line):
            section = heading[1]
        elif row := re.match(r"\| `(\w+)` \| .*? \| (.*?) \| ", line):
            found[f"{section}.{row[1]}"] = row[2]
            if re.search(r"NAME|\[\]", section) or not section:
                found.setdefault(row[1], row[2])
    return found


def _section_tables(path: str, node: Json, section: Json, schema: Json) -> list[str]:
    """That of a section, and those of the sections in it that are not at the top, too."""
    text = node.get("description") or section["description"]
    found = [_table(f"`{path}`", text, [*section["properties"].items()], section.get("required", []))]
    for option, inner in section["properties"].items():
        nested = _section(inner, schema)
        if nested is not None and nested is not _section(schema["properties"].get(option, {}), schema):
            listed = "[]" if "items" in inner else ""
            found += _section_tables(f"{path}.{option}{listed}", inner, nested, schema)
    return found


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


if __name__ == "__main__":
    main(*sys.argv[1:])
