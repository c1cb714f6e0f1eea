"""A prefix is refused where a request could be meant for two dialects, and only there; all in its way are named."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import KNOWN
from gateway.app.routes import route_table
from gateway.config import Config, ConfigError, load
from tests.support.clients import REQUESTS, usual
from tests.support.harness import Stack

EVERY = sorted({prefix or "/" for prefixes in KNOWN.dialects.values() for prefix in prefixes})


def said(folder: Path, dialects: dict[str, Any]) -> list[str]:
    path = folder / "gateway.yaml"
    models = {"m": {"backend": "vllm", "workers": ["http://a"]}}
    path.write_text(json.dumps({"models": models, "dialects": {"ollama_style": {}, **dialects}}))
    try:
        load(path, KNOWN, {})
    except ConfigError as error:
        return [str(fault.message) for fault in error.faults]
    return []


def ambiguous(dialects: dict[str, Any]) -> set[tuple[str, str]]:
    """The dialects of which a request may be meant for either: method, path and header test are the same."""
    places: dict[tuple[str, str, str], list[str]] = {}
    for line in route_table(Config.model_validate({"dialects": dialects})):
        if line.dialect != "-":
            places.setdefault((line.method, re.sub(r"\{\w+", "{", line.path), line.when), []).append(line.dialect)
    return {(one, other) for found in places.values() for one in found for other in found if one < other}


@pytest.mark.parametrize("prefix", EVERY)
@pytest.mark.parametrize("dialect", KNOWN.dialects)
def test_a_prefix_is_refused_where_two_dialects_collide_and_only_there(
    dialect: str, prefix: str, tmp_path: Path
) -> None:
    moved = {dialect: {"prefixes": [prefix]}}
    pairs = ambiguous(moved)
    faults = said(tmp_path, moved)
    named = {name for fault in faults for name in re.findall(r" as (\w+) does", fault)}
    assert named == {name for pair in pairs for name in pair} - {dialect}
    for name in named:
        assert dialect in {*sum(pairs, ())}, name
    # Once what the fault says is done, no other fault comes up.
    assert said(tmp_path, {**moved, **{name: {"enabled": False} for name in named}}) == []


def test_the_dialects_own_prefixes_collide_nowhere(tmp_path: Path) -> None:
    assert said(tmp_path, {}) == []
    assert ambiguous({}) == set()


@pytest.mark.parametrize("dialect", [name for name, prefixes in KNOWN.dialects.items() if "" not in prefixes])
def test_a_specification_may_have_its_literal_paths_at_the_root(dialect: str, tmp_path: Path) -> None:
    """Those of a dialect at `/`, beside all dialects that have other paths there."""
    moved: dict[str, Any] = {dialect: {"prefixes": ["/"], "default_model": "m"}}
    in_the_way = {name for pair in ambiguous(moved) for name in pair} - {dialect}
    assert not in_the_way or dialect not in ("azure_inference", "ollama_style")
    config = {"dialects": {**moved, **{name: {"enabled": False} for name in in_the_way}}}
    assert said(tmp_path, config["dialects"]) == []
    with Stack(config=config) as stack:
        path = usual(dialect).path().removeprefix(KNOWN.dialects[dialect][0])
        reply = httpx.post(stack.url + path, json=REQUESTS[dialect][1])
        assert reply.status_code == 200, reply.text
        assert stack.record()["dialect"] == dialect
        path, body = REQUESTS["anthropic"]
        assert httpx.post(stack.url + path, json=body | {"model": "m"}).status_code == 200
