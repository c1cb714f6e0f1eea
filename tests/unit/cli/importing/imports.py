"""Imports of small LiteLLM installations, checked as far as they can be without secrets."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from gateway.app import KNOWN
from gateway.cli.importing.drafts import Draft, plain
from gateway.cli.importing.litellm import LiteLLM
from gateway.cli.importing.litellm_keys import take_in
from gateway.config import load
from gateway.config.source import read_yaml
from tests.support import litellm


def imported(config: dict[str, Any], rows: object = ()) -> tuple[dict[str, Any], str]:
    """The values and the text of gateway.yaml, which is checked as far as it can be without secrets."""
    draft = Draft()
    take_in(draft, LiteLLM(draft, plain(config), lambda name: None), plain(rows if isinstance(rows, list) else []))
    draft.settle()
    text = "\n".join(draft.lines())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "gateway.yaml")
        path.write_text(text, "utf-8")
        load(path, KNOWN, {}, only=())
        assert read_yaml(path, "gateway.yaml")[0] == draft.values
    assert not any(litellm.MARK in one for one in draft.todo)
    return draft.values, text


def deployment(name: str = "m", **params: object) -> dict[str, Any]:
    return {"model_name": name, "litellm_params": {"model": "hosted_vllm/m", "api_base": "http://w:1/v1", **params}}


def models(*entries: dict[str, Any], **sections: object) -> dict[str, Any]:
    values, _ = imported({"model_list": list(entries), **sections})
    found: dict[str, Any] = values["models"]
    return found


def row(**options: object) -> dict[str, Any]:
    return {"token": "0" * 64, "key_alias": "k", **options}


def key(**options: object) -> dict[str, Any]:
    """The entry of one key beside the models m and n, of a team that may use n."""
    team = {"team_id": "t", "team_alias": "blue", "models": ["n"]}
    config = {"model_list": [deployment(), deployment("n")]}
    values, _ = imported(config, [row(**options), team, {"team_id": "shut", "max_budget": 0}])
    entry: dict[str, Any] = values["keys"]["k"]
    return entry
