"""Google's schemas as JSON Schema: an older subset of OpenAPI's, whose types are enum values and whose 64-bit numbers
may be strings.

Source: the message `Schema` of Google's API (googleapis, `google/ai/generativelanguage/v1beta/content.proto`, and
Vertex AI's).
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from gateway.dialects._shared.faults import wrong
from gateway.wire.json import decoded, encode

_OWN = {
    "any_of": "anyOf",
    "additional_properties": "additionalProperties",
    "max_items": "maxItems",
    "max_length": "maxLength",
    "max_properties": "maxProperties",
    "min_items": "minItems",
    "min_length": "minLength",
    "min_properties": "minProperties",
    "property_ordering": "propertyOrdering",
    "ref": "$ref",
    "defs": "$defs",
}
"""The other names of keywords -> JSON Schema's."""
_NUMBERS = frozenset({"maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"})
_MAPS = frozenset({"properties", "$defs"})
_INNER = frozenset({"items", "additionalProperties", "anyOf"})
# Schemas within schemas, and arrays within arrays: Python's own stack ends at some 1000.
_DEEPEST = 64
_any = msgspec.json.Decoder().decode


def json_schema(schema: Raw, param: str) -> Raw:
    """The schema at `param` as JSON Schema. Raises GatewayError(BAD_REQUEST) for what is not an object, and for one
    with more than _DEEPEST schemas within each other."""
    found = decoded(_any, schema)
    if not isinstance(found, dict):
        raise wrong(param, "must be an object")
    return Raw(encode(_converted(found, param, 0)))


def _converted(found: Any, param: str, depth: int) -> Any:
    """A schema, or an array of them. Any other value goes on as it is."""
    if not isinstance(found, (list, dict)):
        return found
    if depth > _DEEPEST:
        raise wrong(param, f"has more than {_DEEPEST} schemas within each other")
    if isinstance(found, list):
        return [_converted(item, param, depth + isinstance(item, list)) for item in found]
    out: dict[str, Any] = {}
    for given, value in found.items():
        name = _OWN.get(str(given), str(given))
        if name == "type":
            kinds = value if isinstance(value, list) else [value]
            words = [kind.lower() if isinstance(kind, str) else kind for kind in kinds]
            if words != ["type_unspecified"]:
                out[name] = words if isinstance(value, list) else words[0]
        elif name in _MAPS and isinstance(value, dict):
            out[name] = {key: _converted(inner, param, depth + 1) for key, inner in value.items()}
        elif name in _INNER:
            out[name] = _converted(value, param, depth + 1)
        elif name in _NUMBERS and isinstance(value, str) and value.isdecimal() and len(value) < 20:
            out[name] = int(value)
        elif name not in ("nullable", "propertyOrdering", "example") and (name, value) != ("format", "enum"):
            out[name] = value
    _order(out, found.get("propertyOrdering", found.get("property_ordering")))
    return _with_null(out) if found.get("nullable") is True else out


def _order(out: dict[str, Any], names: Any) -> None:
    """Puts the properties into the order in which the model is to write them: engines follow that of the schema."""
    properties = out.get("properties")
    if isinstance(names, list) and isinstance(properties, dict):
        first = [name for name in names if isinstance(name, str) and name in properties]
        out["properties"] = {name: properties[name] for name in [*first, *properties]}


def _with_null(out: dict[str, Any]) -> dict[str, Any]:
    if isinstance(out.get("enum"), list):
        out["enum"] = [*out["enum"], None]
    if isinstance(out.get("type"), str):
        out["type"] = [out["type"], "null"]
        return out
    return {"anyOf": [out, {"type": "null"}]} if out else out
