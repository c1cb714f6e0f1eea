"""What is made from the options: the schema for editors, the tables of the page, the example."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
from pydantic import BaseModel

from gateway import app
from gateway.config import Available, Config, ConfigError, json_schema, load
from gateway.config.loading import FORMS
from gateway.config.section import section_in
from gateway.config.source import read_yaml
from scripts.reference import main, options

ROOT = Path(__file__).resolve().parents[3]
KNOWN = Available(
    {"openai": ("/openai", "/"), "ollama_style": ("/ollama",)},
    backends={"openai": frozenset(), "vllm": frozenset({"prefill", "adapters"})},
)


@cache
def schema_of_known() -> Any:
    """It takes half a second to make."""
    return json_schema(KNOWN)


def test_the_example_is_valid_and_matches_the_schema() -> None:
    config = load(ROOT / "gateway.yaml", app.KNOWN, {})
    assert (config.listen.host, config.listen.port, config.auth) == ("127.0.0.1", 8080, "open")
    assert config.models["smollm2"].workers == ("http://127.0.0.1:8081",)
    assert config.resolve("gpt-4o-mini") == config.resolve("smollm2") == "smollm2"
    assert config.resolve("other") is None
    written, _, _ = read_yaml(ROOT / "gateway.yaml", "gateway.yaml")
    assert set(written) | {"keys", "keys_file", "admins_file"} == set(Config.model_fields)
    jsonschema.Draft202012Validator(json_schema(app.KNOWN)).validate(written)


def test_each_pattern_has_words_for_a_person() -> None:
    sections: list[type[BaseModel]] = [Config]
    patterns: set[str] = set()
    for section in sections:
        held = (section_in(field.annotation) for field in section.model_fields.values())
        sections += [one for one in held if one is not None and one not in sections]
        patterns |= {
            str(pattern)
            for field in section.model_fields.values()
            for one in field.metadata
            if (pattern := getattr(one, "pattern", None)) is not None
        }
    assert patterns == FORMS.keys()


def test_schema_is_a_schema_and_describes_every_option() -> None:
    schema = schema_of_known()
    jsonschema.Draft202012Validator.check_schema(schema)
    for section in schema["$defs"].values():
        assert section["additionalProperties"] is False
        for name, option in section["properties"].items():
            assert option["description"].endswith("."), name


def test_the_schema_has_every_bound_that_is_enforced() -> None:
    """Sections are checked by their own types, so a bound may be missing from the schema, and so from the page."""
    words = {"gt": "exclusiveMinimum", "ge": "minimum", "le": "maximum", "lt": "exclusiveMaximum"}
    definitions = schema_of_known()["$defs"]
    missing, seen = [], 0
    open_: list[type[BaseModel]] = [Config]
    known = set(open_)
    while open_:
        section = open_.pop()
        for name, field in section.model_fields.items():
            more = set(sections_in(field.annotation)) - known
            known |= more
            open_ += more
            if section is Config:
                continue
            node = definitions[section.__name__]["properties"][field.alias or name]
            nodes = (node, *found_in(node))
            for mark in field.metadata:
                for bound, word in words.items():
                    if (value := getattr(mark, bound, None)) is not None:
                        seen += 1
                        if value not in [found[word] for found in nodes if word in found]:
                            missing.append((section.__name__, name, word, value))
    assert missing == []
    assert seen > 100


def found_in(node: Any) -> list[dict[str, Any]]:
    nested = [one for choice in node.get("anyOf", ()) for one in (choice, *found_in(choice))]
    return [one for one in nested if isinstance(one, dict)]


def sections_in(kind: Any) -> list[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [one for part in get_args(kind) for one in sections_in(part)]


@pytest.mark.parametrize("place", ["budgets", "keys"])
def test_a_budget_of_nothing_is_refused_as_the_schema_has_it(place: str, tmp_path: Path) -> None:
    tree: dict[str, Any] = {
        "models": {"m": {"backend": "vllm", "workers": ["http://a:1"], "price": {"request": 1}}},
        "spend": {"currency": "EUR"},
    }
    for amount in (0, 0.5):
        key = {"k": {"hash": "sha256:" + "0" * 64, "limits": {"budget": amount}}}
        more: dict[str, Any] = {"keys": key} if place == "keys" else {"budgets": [{"name": "b", "amount": amount}]}
        file = tmp_path / "gateway.yaml"
        file.write_text(json.dumps({**tree, **more}))
        valid = jsonschema.Draft202012Validator(schema_of_known()).is_valid({**tree, **more})
        assert valid is bool(amount)
        if not amount:
            with pytest.raises(ConfigError, match="must be greater than 0"):
                load(file, KNOWN, {})
        else:
            load(file, KNOWN, {})


@pytest.mark.parametrize(
    ("tree", "valid"),
    [
        ({"listen": {"port": 9000, "max_body_bytes": "32MiB", "header_timeout_s": "5s"}}, True),
        ({"listen": None, "keys": None}, True),
        ({"listen": {"prot": 9000}}, False),
        ({"listen": {"port": 70000}}, False),
        ({"listen": {"port": "80"}}, False),
        ({"log": {"requests": "no"}}, False),
        ({"log": {"requests": 0}}, False),
        ({"log": {"level": "loud"}}, False),
        ({"deadlines": {"idle_s": "soon"}}, False),
        ({"models": {"small": {"backend": "openai"}}}, False),
        ({"models": {"small": {"backend": "other", "workers": ["http://a"]}}}, False),
        ({"dialects": {"klingon": {}}}, False),
        ({"keys": {"a": {"hash": "plain"}}}, False),
        ({"keys": {"a": {"team": "b"}}}, False),
        ({"keys": {"a": None}}, False),
    ],
)
def test_schema_agrees_with_load(tmp_path: Path, tree: dict[str, Any], valid: bool) -> None:
    assert jsonschema.Draft202012Validator(schema_of_known()).is_valid(tree) is valid
    text = json.dumps({"models": {"small": {"backend": "openai", "workers": ["http://127.0.0.1:8081"]}}, **tree})
    (tmp_path / "gateway.yaml").write_text(text)
    if valid:
        load(tmp_path / "gateway.yaml", KNOWN, {})
    else:
        with pytest.raises(ConfigError):
            load(tmp_path / "gateway.yaml", KNOWN, {})


def test_the_schema_in_git_is_up_to_date(tmp_path: Path) -> None:
    main(str(tmp_path / "made"))
    assert (tmp_path / "made").read_text() == (ROOT / "docs" / "gateway.schema.json").read_text(), "run: make docs"


def test_every_section_is_on_the_page() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text().partition("## All options")[2]
    first = re.findall(r"^\| (`.*?`) \|", page, re.MULTILINE)
    told = [name for cell in first for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(told) == sorted(json_schema(KNOWN)["properties"])


def test_the_prefixes_of_every_dialect_are_on_the_page() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (`/[^;|]*)", page.partition("Unless `prefixes` says otherwise")[2], re.MULTILINE)
    told = {name: tuple(one.rstrip("/") for one in re.findall(r"`(/\S*)`", prefixes)) for name, prefixes in rows}
    assert told == dict(app.KNOWN.dialects)


def test_every_option_is_in_the_tables() -> None:
    tables = options()
    for section in schema_of_known()["$defs"].values():
        assert all(f"| `{name}` |" in tables for name in section["properties"])


def test_examples_on_the_page_are_valid(tmp_path: Path) -> None:
    examples = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "configuration.md").read_text(), re.DOTALL)
    assert len(examples) >= 4
    validator = jsonschema.Draft202012Validator(schema_of_known())
    for example in examples:
        (tmp_path / "gateway.yaml").write_text(example)
        load(tmp_path / "gateway.yaml", KNOWN, {"UPSTREAM_KEY": "x", "NOTEBOOKS_SECRET": "x"})
        values, _, _ = read_yaml(tmp_path / "gateway.yaml", "gateway.yaml")
        validator.validate(values)


def test_the_example_of_limits_is_whole(tmp_path: Path) -> None:
    """As it is printed, with the file that it names."""
    page = (ROOT / "docs" / "limits.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "redis-password").write_text("secret")
    (tmp_path / "gateway.yaml").write_text(example)
    assert load(tmp_path / "gateway.yaml", app.KNOWN, {}).limits
