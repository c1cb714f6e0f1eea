"""Cohere's two clients: what they make of rankings, and of refusals by their status (`make test-agents`)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.libraries.conftest import Keyed
from tests.acceptance.libraries.environment import SETTINGS
from tests.acceptance.libraries.library import ROOT

pytestmark = pytest.mark.agents
PYTHON = ROOT / ".venv" / "bin" / "python"
# What is refused -> the class, the status, and a part of what it says.
REFUSED: dict[str, tuple[str, int, str]] = {
    "blank": ("BadRequestError", 400, "'query' must not be blank"),
    "unknown": ("NotFoundError", 404, "nobody"),
    "fails": ("ApiError", 502, "the worker failed"),
    "expired": ("UnauthorizedError", 401, "expired"),
}


def test_law_6_both_clients_parse_replies_and_tell_refusals_by_their_status(keyed: Keyed, tmp_path: Path) -> None:
    keys = [keyed.keys[name] for name in ("good", "expired", "busy")]
    command = [str(PYTHON), str(Path(__file__).with_name("cohere_rankings.py")), keyed.stack.url, *keys]
    environ = {**SETTINGS, "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    with keyed.over_the_limit():
        ran = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environ, check=False)
    assert ran.returncode == 0, ran.stderr
    told: dict[str, Any] = json.loads(ran.stdout)
    old, new = told["orders"]
    assert old == new
    assert [index for index, _ in new] == [1, 0]
    assert told["texts"] == ["the animal which purrs", "a dog barks"]
    assert told["units"] == [1, 1]
    assert all(one.startswith("rerank-") for one in told["ids"])
    for client in ("Client", "ClientV2"):
        for what, (name, status, words) in REFUSED.items():
            assert told[client][what][:2] == [name, status], (client, what)
            assert words in told[client][what][2]
    assert told["busy"][:2] == ["TooManyRequestsError", 429]
