"""A text of the values without its form is refused in words: no message has a pattern, and each names its value."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from scripts import value_forms
from tests.acceptance.helm.chart import CHART, helm
from tests.acceptance.helm.test_guards import GOOD, refusal, under
from tests.acceptance.helm.test_values import SCHEMA, merged

FORMS: dict[str, dict[str, str]] = yaml.safe_load((CHART / "files" / "forms.yaml").read_text())
FORMED: dict[str, Any] = json.loads((CHART / "files" / "formed.json").read_text())
WRONG = '~! "\n'
PATTERN = re.compile(r"\^|\[|\$|\\[dsS]|\{\d")


def wrong(tree: dict[str, Any], at: str, lists: bool) -> tuple[Any, set[str]]:
    """A value in which every text below `tree` is wrong, and the refusals that are due. lists: where a list or a
    mapping may be, it is a list."""
    value: Any = {}
    due: set[str] = set()
    if "of" in tree and not (lists and "items" in tree):
        value, due = wrong(FORMED["of"][tree["of"]], at, lists)
    if "form" in tree:
        return WRONG, due | {f"{at}: must be {FORMS[tree['form']]['words']}"}
    if "names" in tree:
        value = {**value, WRONG: None}
        due.add(f"{at}: the key {json.dumps(WRONG)} must be {FORMS[tree['names']]['words']}")
    if "items" in tree and (lists or tree.keys() == {"items"}):
        item, more = wrong(tree["items"], f"{at}.0", lists)
        return [item], due | more
    members = tree.get("keys", {}) | ({"m": tree["each"]} if "each" in tree else {})
    for key, one in members.items():
        part, more = wrong(one, f"{at}.{key}".removeprefix("."), lists)
        value = merged(value, {key: part})
        due |= more
    return value, due


@pytest.mark.parametrize("lists", [True, False])
def test_no_text_of_a_wrong_form_is_taken_and_no_message_has_a_pattern(lists: bool) -> None:
    """All of them at once: whatever is not mapped here is not the schema's affair."""
    values, due = wrong(FORMED["values"], "", lists)
    assert len(due) > 300
    done = helm(
        *("template", "dragoman", CHART, "--skip-schema-validation"),
        *(f"--set-json={key}={json.dumps(value)}" for key, value in values.items()),
    )
    said = {line.rpartition("checked.yaml:3:4): ")[2] for line in done.stderr.splitlines()}
    assert due - said == set()
    assert [line for line in said if PATTERN.search(line)] == []


def test_the_schema_has_no_pattern_and_every_form_is_used() -> None:
    text = json.dumps(SCHEMA)
    assert '"pattern"' not in text
    assert set(re.findall(r'"x-form": "(\w+)"', text)) == FORMS.keys()
    assert value_forms.formed(SCHEMA) == FORMED, "run `make docs`"


@pytest.mark.parametrize("name", FORMS)
def test_a_form_has_words_and_refuses_what_is_odd(name: str) -> None:
    form = FORMS[name]
    assert not PATTERN.search(form["words"])
    assert not re.search(form["matches"], WRONG)


@pytest.mark.parametrize(
    ("said", "values"),
    [
        ("nameOverride: must be at most 40", {"nameOverride": "My Chart"}),
        ("gateway.config.queue.timeout_s: must be a number of", under("gateway.config.queue.timeout_s", "ten")),
        ("models.m.urls.1: must be an address", {"models": {"m": {"urls": ["http://a", "ftp://b"]}}}),
        ('models: the key "a b" must be a model', {"models": {"a b": {"model": "org/m"}}}),
    ],
)  # fmt: skip
def test_the_message_names_the_value_and_keeps_its_text_to_itself(
    said: str, values: dict[str, Any], tmp_path: Any
) -> None:
    found = refusal({**GOOD, **values}, tmp_path)
    assert said in found
    assert "ftp" not in found
    assert not PATTERN.search(found.partition("checked.yaml:3:4): ")[2])


def test_a_pattern_without_words_is_no_part_of_the_schema() -> None:
    with pytest.raises(KeyError):
        value_forms.named({"type": "string", "pattern": "^unheard of$"}, {"^known$": "known"})
    assert value_forms.named({"anyOf": [{"pattern": "^known$"}]}, {"^known$": "known"}) == {
        "anyOf": [{"x-form": "known"}]
    }
    with pytest.raises(ValueError, match="two alternatives"):
        value_forms.formed({"$defs": {}, "properties": {"a": {"anyOf": [{"x-form": "one"}, {"x-form": "two"}]}}})
