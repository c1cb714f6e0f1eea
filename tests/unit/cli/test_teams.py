"""Teams from the command line, at a running gateway."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.commands import called
from tests.support.harness import Stack, until
from tests.support.redis_server import Server
from tests.unit.features.admin.calling import Caller, config, status

pytestmark = [pytest.mark.feature(one) for one in ("admin", "limits")]
LIMITS = [{"name": "hourly", "kind": "requests", "limit": 5, "per_s": 3600, "scope": ["team"]}]


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    (tmp_path / "admin.key").write_text("root-key\n")
    entries = {"fixed": {"disabled": True}}
    with (
        Server(tmp_path, "--appendonly", "yes") as server,
        Stack(({},), config(server, limits=LIMITS, teams=entries)) as stack,
    ):
        yield stack


def teams(stack: Stack, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return called("teams", *words, "--gateway", stack.admin_url, "--key-file", "admin.key", folder=folder)


def test_a_team_from_set_to_delete(stack: Stack, tmp_path: Path) -> None:
    def ask(*words: str) -> Any:
        found = teams(stack, tmp_path, *words)
        assert (found.returncode, found.stderr) == (0, "")
        return json.loads(found.stdout)

    key = Caller(stack, "root-key").made("app", team="blue")
    numbers = ("--limit", "hourly=2", "--budget", "team-budget=3.5")
    made = ask("set", "blue", "--model", "m", *numbers, "--options", '{"description": "Blue", "disabled": null}')
    assert (made["models"], made["limits"], made["budgets"]) == (["m"], {"hourly": 2}, {"team-budget": "3.5"})
    assert (made["description"], made["keys"], made["created_by"]) == ("Blue", 1, "root")
    changed = ask("set", "blue", "--limit", "team-requests=1", "--options", '{"models": null}')
    assert (changed["models"], changed["limits"]) == (None, {"hourly": 2, "team-requests": 1}), "the others stay"
    assert ask("show", "blue") == changed
    until(lambda: status(stack, key) == 429)

    lines = [line.split() for line in teams(stack, tmp_path, "list").stdout.splitlines()]
    assert lines == [
        ["name", "keys", "state", "where", "models", "limits", "budgets"],
        ["blue", "1", "valid", "store", "all", "hourly=2,team-requests=1", "team-budget=3.5"],
        ["fixed", "0", "disabled", "configuration", "all", "-", "-"],
    ]
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump(json.loads(stack.config().model_dump_json(exclude_defaults=True))))
    shown = called("limits", "show", "--config", str(file), "--key", "app").stdout
    own = ("hourly", "team-requests", "team-budget")
    assert [line.split()[:3] for line in shown.splitlines()[1:]] == [[name, "team", "blue"] for name in own]

    refused = teams(stack, tmp_path, "delete", "blue")
    assert (refused.returncode, "without a terminal, give --yes" in refused.stderr) == (2, True)
    ask("set", "blue", "--options", '{"disabled": true}')
    refused = teams(stack, tmp_path, "delete", "blue", "--yes")
    assert (refused.returncode, "the team is disabled: revoke its keys" in refused.stderr) == (1, True)
    ask("set", "blue", "--options", '{"disabled": null}')
    gone = teams(stack, tmp_path, "delete", "blue", "--yes")
    assert (gone.returncode, gone.stderr) == (0, "blue has no entry any more\n")
    until(lambda: status(stack, key) == 200)


def test_mistakes_are_told_apart(stack: Stack, tmp_path: Path) -> None:
    for words, code, said in (
        (("set", "blue", "--limit", "hourly"), 2, "--limit must be RULE=N, such as team-tokens=100"),
        (("set", "blue", "--limit", "hourly=x"), 2, "--limit must be RULE=N"),
        (("set", "blue", "--limit", f"hourly={'9' * 5000}"), 2, "--limit must be RULE=N"),
        (("set", "blue", "--limit", "daily=3"), 1, "limits.daily: is not a limit with `team` in its scope"),
        (("set", "blue", "--options", "[]"), 2, "--options must be a JSON object"),
        (("set", "blue", "--model", "m", "--options", '{"models": []}'), 2, "models is given twice"),
        (("set", "fixed", "--model", "m"), 1, "the team stands in the configuration"),
        (("set", "fixed"), 2, "nothing to change"),
        (("show", "blue"), 1, "there is no such team"),
        (("delete", "blue", "--yes"), 1, "there is no such team"),
    ):
        found = teams(stack, tmp_path, *words)
        assert (found.returncode, found.stdout) == (code, "")
        assert said in found.stderr
