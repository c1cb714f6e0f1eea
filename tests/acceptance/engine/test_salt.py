"""What the engine has cached for one team is nothing to another: `cache_salt` in configuration, as vLLM obeys it."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
import yaml

from gateway.auth import new_key
from tests.support.harness import Stack

pytestmark = [pytest.mark.engine, pytest.mark.whole]  # it waits for an engine of its own or for its caches

BLOCK = 128
"""Tokens of a block on the CPU: only whole ones are cached."""
LONG = "The river runs past the old mill and the market square. " * 40


def hits(engine: httpx.Client) -> float:
    """Tokens that were found in the prefix cache so far."""
    return sum(map(float, re.findall(r"^vllm:prefix_cache_hits_total\S* (\S+)$", engine.get("/metrics").text, re.M)))


@pytest.mark.parametrize("path", ["/v1/completions", "/friendli/v1/completions"])
def test_teams_share_no_cache(engine: httpx.Client, path: str) -> None:
    keys: dict[str, str] = {}
    entries: dict[str, Any] = {}
    for name, team in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        keys[name], entry = new_key(name, team)
        entries |= yaml.safe_load(entry)
    config = {
        "models": {"smollm2": {"backend": "vllm", "workers": [str(engine.base_url)]}},
        "keys": entries,
        "cache_salt": {"secret_env": "SALT"},
        "health": {"timeout_s": 10, "interval_s": 10},
    }
    found = {}
    with Stack(workers=(), config=config, environ={"SALT": "s" * 40}) as stack:
        for name in ("a1", "b1", "a2"):
            before = hits(engine)
            # A prompt of its own for each way of asking.
            body = {"model": "smollm2", "prompt": f"{path}: {LONG}", "max_tokens": 1}
            answer = httpx.post(stack.url + path, headers={"api-key": keys[name]}, json=body, timeout=120)
            assert answer.status_code == 200, answer.text
            found[name] = hits(engine) - before
    assert found["a1"] == found["b1"] == 0
    assert found["a2"] >= BLOCK
