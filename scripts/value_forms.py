"""The forms of texts in the chart's values: where which of them holds.

A values schema with patterns makes helm print these to people. So the schema names a form (`x-form`, `x-names` for the
keys of a mapping), which JSON Schema passes over, and a template of the chart refuses a wrong text in words. It reads
`files/forms.yaml`, which says what a form matches, and `files/formed.json`, which this module makes of the schema.
"""

from __future__ import annotations

from typing import Any

import yaml


def read(text: str) -> dict[str, str]:
    """Of `files/forms.yaml`: what a form matches -> its name."""
    return {one["matches"]: name for name, one in yaml.safe_load(text).items()}


def named(node: Any, forms: dict[str, str]) -> Any:
    """`node` with names of forms for patterns. Raises KeyError for a pattern of which `forms.yaml` has no words."""
    if isinstance(node, list):
        return [named(one, forms) for one in node]
    if not isinstance(node, dict):
        return node
    found = {key: named(one, forms) for key, one in node.items() if not (key == "pattern" and isinstance(one, str))}
    if isinstance(pattern := node.get("pattern"), str):
        found["x-form"] = forms[pattern]
    return found


def formed(schema: dict[str, Any]) -> dict[str, Any]:
    """Where forms hold: a tree for the values, and one for each definition that leads to any.

    form   of the text itself
    names  the form of the keys of the mapping
    keys   key -> tree
    each   tree of the members that `keys` does not have
    items  tree of the members of a list
    of     the definition that has more of it
    """
    trees = {name: _tree(one) for name, one in schema["$defs"].items()}
    while empty := {name for name, tree in trees.items() if not tree}:
        trees = {name: _without(tree, empty) for name, tree in trees.items() if tree}
    values = _tree({key: one for key, one in schema.items() if key != "$defs"})
    return {"values": _without(values, schema["$defs"].keys() - trees.keys()), "of": trees}


def _tree(node: Any) -> dict[str, Any]:
    """Raises ValueError where two alternatives say different things of one text."""
    found: dict[str, Any] = {}
    if not isinstance(node, dict):
        return found
    if "$ref" in node:
        found["of"] = node["$ref"].rpartition("/")[2]
    if "x-form" in node:
        found["form"] = node["x-form"]
    if "x-form" in (names := node.get("propertyNames", {})):
        found["names"] = names["x-form"]
    if keys := {key: tree for key, one in node.get("properties", {}).items() if (tree := _tree(one))}:
        found["keys"] = keys
    if each := _tree(node.get("additionalProperties")):
        found["each"] = each
    if items := _tree(node.get("items")):
        found["items"] = items
    for one in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        for key, value in _tree(one).items():
            if found.setdefault(key, value) != value:
                raise ValueError(f"two alternatives have a {key}: {found[key]} and {value}")
    return found


def _without(tree: dict[str, Any], empty: set[str]) -> dict[str, Any]:
    """`tree` without what leads to empty definitions alone."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if key == "keys":
            value = {name: one for name, part in value.items() if (one := _without(part, empty))}
        elif key in ("each", "items"):
            value = _without(value, empty)
        if value and not (key == "of" and value in empty):
            found[key] = value
    return found
