"""Cuts the schemas in `crds/` out of operators' CustomResourceDefinitions: facts of the fields that the chart uses."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from tests.acceptance.helm.chart import SETS, Object, objects
from tests.acceptance.helm.schemas import CRDS

_CONSTRAINTS = ("type", "enum", "minimum", "maximum", "minLength", "maxLength", "pattern", "minItems", "maxItems")


def cut(definition: Mapping[str, Any], source: str, used: Iterable[Object]) -> dict[str, Any] | None:
    """The schema of a CustomResourceDefinition's version that the chart uses; None where it uses none.

    source says where the definition is from; used holds objects of any kind that the chart renders.
    """
    spec = definition["spec"]
    for version in spec["versions"]:
        api = f"{spec['group']}/{version['name']}"
        ours = [one for one in used if (one["apiVersion"], one["kind"]) == (api, spec["names"]["kind"])]
        if ours:
            schema = _cut(version["schema"]["openAPIV3Schema"], ours)
            schema["properties"]["metadata"] = {"type": "object"}
            return {"x-source": source, "x-api-version": api, "x-kind": spec["names"]["kind"], **schema}
    return None


def _cut(schema: Mapping[str, Any], values: list[Any]) -> dict[str, Any]:
    """What of a schema the values touch, closed against everything else."""
    if "containers" in schema.get("properties", {}).get("spec", {}).get("properties", {}):
        return {"x-pod": True}
    found: dict[str, Any] = {key: schema[key] for key in _CONSTRAINTS if key in schema}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    if "properties" in schema:
        mappings = [value for value in values if isinstance(value, dict)]
        touched = {name for value in mappings for name in value} | set(schema.get("required", ()))
        found["properties"] = {
            name: _cut(part, [value[name] for value in mappings if name in value])
            for name, part in schema["properties"].items()
            if name in touched
        }
        found["additionalProperties"] = False
        if "required" in schema:
            found["required"] = list(schema["required"])
    elif isinstance(schema.get("additionalProperties"), dict):
        inner = [one for value in values if isinstance(value, dict) for one in value.values()]
        found["additionalProperties"] = _cut(schema["additionalProperties"], inner)
    if "items" in schema:
        found["items"] = _cut(schema["items"], [one for value in values if isinstance(value, list) for one in value])
    return found


def write(source: str, text: str) -> list[str]:
    """Writes the schemas of the definitions in `text` that the chart uses; their kinds."""
    used = [one for name in SETS for one in objects(name)]
    kinds = []
    for definition in yaml.safe_load_all(text):
        schema = cut(definition, source, used)
        if schema is not None:
            kinds.append(schema["x-kind"])
            (CRDS / f"{schema['x-kind'].lower()}.json").write_text(json.dumps(schema, indent=1) + "\n")
    return kinds
