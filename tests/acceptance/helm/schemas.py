"""Validation of rendered objects: Kubernetes' own by its published schemas, custom ones by those of their operators.

`crds/*.json` hold, of each custom resource, the fields that the chart uses, closed against all others. They are cut out
of the operators' CustomResourceDefinitions by `python -m tests.acceptance.helm crds FILE...`. Where a definition embeds
a Pod, the schema says `"x-pod": true` instead, and the Pod is validated as Kubernetes' own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.acceptance.helm.chart import HERE, Object

_SCHEMAS = files("kubernetes_validate") / "kubernetes-json-schema"
CRDS = HERE / "crds"


def minors() -> list[str]:
    """The last three minor versions of Kubernetes that the package has, as 1.37.0."""
    found = [one.name for one in _SCHEMAS.iterdir() if one.name.endswith("-local-strict")]
    versions = [name.removeprefix("v").removesuffix("-local-strict") for name in found]
    return sorted(versions, key=lambda version: [int(part) for part in version.split(".")])[-3:]


@cache
def _core(version: str) -> tuple[Registry[Any], dict[tuple[str, str], str]]:
    """(the definitions, (apiVersion, kind) -> address of its definition) of a version."""
    schema = json.loads((_SCHEMAS / f"v{version}-local-strict" / "_definitions.json").read_text())
    places = {
        (f"{kind['group']}/{kind['version']}".removeprefix("/"), kind["kind"]): f"{schema['$id']}#/$defs/{name}"
        for name, one in schema["$defs"].items()
        for kind in one.get("x-kubernetes-group-version-kind", [])
    }
    return Registry().with_resource(schema["$id"], Resource.from_contents(schema)), places


@cache
def _validator(version: str, api: str, kind: str) -> Draft202012Validator:
    registry, places = _core(version)
    if (api, kind) not in places:
        raise LookupError(f"Kubernetes {version} has no {kind} of {api}")
    return Draft202012Validator({"$ref": places[api, kind]}, registry=registry)


def custom() -> dict[tuple[str, str], dict[str, Any]]:
    """(apiVersion, kind) -> its schema."""
    found = {}
    for path in sorted(CRDS.glob("*.json")):
        one = json.loads(path.read_text())
        found[one["x-api-version"], one["x-kind"]] = one
    return found


def faults(one: Object, version: str) -> Iterator[str]:
    """What is wrong with an object. Raises LookupError for a kind that nobody knows."""
    api, kind = one["apiVersion"], one["kind"]
    schema = custom().get((api, kind))
    if schema is None:
        yield from _said(_validator(version, api, kind), one)
        return
    yield from _said(Draft202012Validator(schema), one)
    for pod in embedded(schema, one):
        whole = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": pod}
        yield from _said(_validator(version, "v1", "PodTemplate"), whole)


def embedded(schema: dict[str, Any], value: Any) -> Iterator[Any]:
    """The Pods inside a custom object."""
    if schema.get("x-pod"):
        yield value
    elif isinstance(value, dict):
        for name, part in schema.get("properties", {}).items():
            if name in value:
                yield from embedded(part, value[name])
    elif isinstance(value, list):
        for item in value:
            yield from embedded(schema.get("items", {}), item)


def _said(validator: Any, value: Any) -> Iterator[str]:
    for error in validator.iter_errors(value):
        yield f"{error.json_path}: {error.message[:300]}"
