"""Writes the generated parts of the chart: its README, the options of gateway.yaml in its values schema, and what it
knows of dialects.

Run by `make docs`. Descriptions come from the comments in values.yaml, types from values.schema.json, and the options
of gateway.yaml from the gateway itself, so that a wrong option is refused by `helm install` already.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from gateway import dialects
from gateway.config import json_schema
from gateway.core.fields import Example
from gateway.core.http import Route
from gateway.core.ports import Dialect, Settings
from scripts import value_forms

CHART = Path(__file__).resolve().parent.parent / "helm" / "dragoman"
BEGIN, END = "<!-- values: begin -->", "<!-- values: end -->"
# Sections, and options of other sections, of gateway.yaml that the chart writes itself.
OWN_SECTIONS = ("auth", "console", "keys", "keys_file", "models", "redis", "metrics")
OWN_OPTIONS = {
    "Batches": ("directory", "bucket"),
    "PromptLog": ("directory",),
    "Listen": ("host", "port"),
    "Start": ("known_folder",),
    "Relay": ("drain_s", "notice_s"),
    "CacheSalt": ("secret_env",),
    "ConsoleOidc": ("client_secret_file", "client_secret_env", "session_secret_file", "session_secret_env", "ca_file"),
    "Tracing": ("headers",),
    "WebSearch": ("headers",),
    "Guard": ("headers",),
    "Seal": ("secret_env",),
    "Model": ("backend", "workers", "discover", "api_key_file", "api_key_env", "ca_file"),
}
_COMMENT = re.compile(r"^(?P<indent> *)# ?(?P<text>.*)$")
_KEY = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z0-9]+):(?: (?P<value>.*))?$")
_KUBE = re.compile(r"io\.k8s\.(api\.core\.v1|apimachinery\.pkg\..+)\.\w+$")
_NO_TEXT = ("description", "default", "title")


def with_gateway_options(schema: dict[str, Any]) -> dict[str, Any]:
    """The values schema, with the gateway's definitions that the chart's values may hold."""
    source = json_schema()
    own = {name: one for name, one in schema["$defs"].items() if not name[0].isupper()}
    sections = {name: one for name, one in source["properties"].items() if name not in OWN_SECTIONS}
    definitions = {
        "GatewayConfig": {"type": "object", "additionalProperties": False, "properties": sections},
        "GatewayModel": {**source["$defs"]["Model"], "anyOf": None, "required": None},
        **{name: one for name, one in source["$defs"].items() if name != "Model"},
    }
    for name, options in OWN_OPTIONS.items():
        one = definitions["GatewayModel" if name == "Model" else name]
        one["properties"] = {key: value for key, value in one["properties"].items() if key not in options}
    # Only a file can lead to the secret; see OWN_OPTIONS.
    definitions["CacheSalt"] = {**definitions["CacheSalt"], "anyOf": None, "required": ["secret_file"]}
    for name in ("Batches", "PromptLog"):
        definitions[name] = {**definitions[name], "anyOf": None}
    definitions["ConsoleOidc"] = {**definitions["ConsoleOidc"], "required": None}  # a guard asks for them
    forms = value_forms.read((CHART / "files" / "forms.yaml").read_text())
    definitions = {name: _bare(one) for name, one in (definitions | kubernetes_types()).items()}
    written = {**schema, "$defs": own}
    reached = sorted(_reached(definitions, written))
    return {**schema, "$defs": own | {name: value_forms.named(definitions[name], forms) for name in reached}}


def kubernetes_types() -> dict[str, Any]:
    """Kubernetes' own types, by their names with `Kube` before them, of the newest version in the package
    kubernetes-validate: closed against unknown members, so that a typo in what a site adds to a Pod is refused."""
    folders = files("kubernetes_validate") / "kubernetes-json-schema"
    names = [one.name for one in folders.iterdir() if one.name.endswith("-local-strict")]
    newest = max(names, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])
    source = json.loads((folders / newest / "_definitions.json").read_text())["$defs"]
    text = json.dumps({_kube(name): one for name, one in source.items() if _KUBE.match(name)})
    text = re.sub(r"#/\$defs/([\w.-]+)", lambda place: f"#/$defs/{_kube(place[1])}", text)
    found: dict[str, Any] = json.loads(re.sub(r'\["(\w+)", "null"\]', r'"\1"', text))  # null: nothing is there
    # A volume's template may have no more of it.
    meta = found["KubeObjectMeta"]
    meta["properties"] = {name: meta["properties"][name] for name in ("annotations", "labels")}
    return found


def _kube(name: str) -> str:
    return f"Kube{name.rpartition('.')[2]}"


def _bare(value: Any) -> Any:
    """`found` without descriptions, defaults and nulls. The chart's README links to the gateway's pages instead."""
    if isinstance(value, list):
        return [_bare(one) for one in value]
    if not isinstance(value, dict):
        return value
    found = {}
    for key, one in value.items():
        if key == "properties":
            found[key] = {name: _bare(option) for name, option in one.items()}
        elif key not in _NO_TEXT and not key.startswith("x-kubernetes") and one is not None:
            found[key] = _bare(one)
    return found


def _reached(definitions: dict[str, Any], written: dict[str, Any]) -> set[str]:
    """The definitions that the part of the schema that is written by hand refers to, and those that they do."""
    found: set[str] = set()
    text = json.dumps(written)
    while waiting := set(re.findall(r'"#/\$defs/(\w+)"', text)) & definitions.keys() - found:
        found |= waiting
        text = json.dumps([definitions[name] for name in waiting])
    return found


def schema_text(schema: dict[str, Any]) -> str:
    """The schema's file. Kubernetes' types have a line each: nobody edits them."""
    types = {name: one for name, one in schema["$defs"].items() if name.startswith("Kube")}
    marked = {**schema, "$defs": {**schema["$defs"], **{name: f"@{name}@" for name in types}}}
    text = json.dumps(marked, indent=2, ensure_ascii=False)
    for name, one in types.items():
        text = text.replace(f'"@{name}@"', json.dumps(one, ensure_ascii=False))
    return text + "\n"


def described(text: str) -> Iterator[tuple[str, str]]:
    """(dotted path, description) of every value with a comment of its own in values.yaml, in its order."""
    path: list[tuple[int, str]] = []
    words: list[str] = []
    for line in text.splitlines():
        if comment := _COMMENT.match(line):
            words.append(comment["text"])
        elif key := _KEY.match(line):
            indent = len(key["indent"])
            path = [*((depth, name) for depth, name in path if depth < indent), (indent, key["key"])]
            if words:
                yield ".".join(name for _, name in path), " ".join(words)
            words = []
        else:
            words = []


def _at(values: Any, path: str) -> Any:
    for name in path.split("."):
        values = values[name]
    return values


def _type(schema: dict[str, Any], path: str) -> str:
    """The kind of the value at `path`, in words."""
    node = schema
    for name in path.split("."):
        node = _resolved(schema, node["properties"][name])
    if "enum" in node:
        return ", ".join(f"`{word}`" for word in node["enum"])
    kind = {"object": "mapping", "array": "list", "string": "text", "integer": "number", "boolean": "`true`, `false`"}
    said = kind[node["type"]]
    bounds = [f"{sign} {node[key]}" for key, sign in (("minimum", "≥"), ("maximum", "≤")) if key in node]
    return " ".join([said, ", ".join(bounds)]) if bounds else said


def _resolved(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    return schema["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node


def table(text: str, schema: dict[str, Any]) -> str:
    """The table of all values. Raises KeyError where the schema does not know one of them."""
    values = yaml.safe_load(text)
    lines = ["| value | kind | default | |", "|---|---|---|---|"]
    for path, words in described(text):
        value = _at(values, path)
        node_default = "" if isinstance(value, dict) and value else f"`{json.dumps(value)}`"
        lines.append(f"| `{path}` | {_type(schema, path)} | {node_default} | {words} |".replace("|  |", "| |"))
    return "\n".join(lines)


def readme(page: str, text: str, schema: dict[str, Any]) -> str:
    """The chart's README with the table between its marks written anew."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table(text, schema)}\n\n{END}{rest.partition(END)[2]}"


def dialect(made: Dialect) -> dict[str, Any]:
    """What the chart knows of one dialect.

    prefixes  its own, "/" for the root
    root      where its paths begin at the root
    fixed     where its paths begin under every prefix
    path      of its usual chat, below a prefix, with the query; MODEL stands for the model
    streamed  the same for a streamed one
    body      of that chat
    generates whether its clients ask a model to generate: else there is no completion to be had
    """
    examples = made.examples.get("chat") or next(iter(made.examples.values()))
    example = examples[0]
    path = _path(made, example)
    return {
        "prefixes": [prefix or "/" for prefix in made.prefixes],
        "root": _begin([one for one in made.routes if not one.absolute]),
        "fixed": _begin([one for one in made.routes if one.absolute]),
        "path": path,
        "streamed": path if example.streams != "never" else _path(made, examples[-1]),
        "body": dict(example.body) | ({} if "MODEL" in path else {"model": "MODEL"}),
        "generates": not {"chat", "complete"}.isdisjoint(made.examples),
    }


def _path(made: Dialect, example: Example) -> str:
    """The path of the first route of this example, with its query."""
    route = next(route for route in made.routes if route.name == example.route and not route.absolute)
    path = re.sub(r"\{\w+(:path)?\}", "MODEL", route.path)
    return path + (f"?{example.query.decode()}" if example.query else "")


def _begin(routes: list[Route]) -> list[str]:
    """The first segments of their paths, each once; those that are no more than the root are left out."""
    return list(dict.fromkeys("/" + first for one in routes if (first := one.path.strip("/").split("/")[0])))


def dialect_facts() -> dict[str, Any]:
    """Of every dialect."""
    return {name: dialect(dialects.create(name, Settings())) for name in dialects.REGISTRY}


def main() -> None:
    """Writes the four files."""
    schema_file, readme_file = CHART / "values.schema.json", CHART / "README.md"
    schema = with_gateway_options(json.loads(schema_file.read_text()))
    schema["$defs"]["dialect"]["enum"] = list(dialects.REGISTRY)
    schema_file.write_text(schema_text(schema))
    readme_file.write_text(readme(readme_file.read_text(), (CHART / "values.yaml").read_text(), schema))
    (CHART / "files" / "formed.json").write_text(json.dumps(value_forms.formed(schema), indent=1) + "\n")
    facts = json.dumps(dialect_facts(), indent=2, ensure_ascii=False)
    (CHART / "files" / "dialects.json").write_text(facts + "\n")


if __name__ == "__main__":
    main()
