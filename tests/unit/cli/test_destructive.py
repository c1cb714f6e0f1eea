"""Commands that destroy something: they ask first, do what they name and no more, and leave a line in the record."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway.cli import destructive
from tests.support.commands import called
from tests.support.harness import Stack
from tests.support.redis_server import Server
from tests.unit.features.admin.calling import CHAT, PATH
from tests.unit.features.admin.calling import config as stored


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("redis"), "--appendonly", "yes") as server:
        yield server


@pytest.fixture(scope="module")
def stack(server: Server) -> Iterator[Stack]:
    sections: dict[str, Any] = {
        "models": {"m": {"price": {"request": 1}}},
        "spend": {"currency": "EUR"},
        "limits": [
            {"name": "few", "kind": "requests", "limit": 50},
            {"name": "all", "kind": "requests", "limit": 90, "scope": []},
        ],
        "budgets": [{"name": "month", "amount": 100}],
    }
    with Stack(({},), config(server, **sections)) as stack:
        yield stack


def config(server: Server, **sections: Any) -> dict[str, Any]:
    return {**stored(server), **sections}


@pytest.fixture
def file(stack: Stack, tmp_path: Path) -> Path:
    """The configuration of the gateway; two requests were served."""
    for _ in range(2):
        headers = {"authorization": "Bearer configured"}
        answer = httpx.post(stack.url + "/v1/chat/completions", json=CHAT, headers=headers, timeout=60)
        assert answer.status_code == 200
    found = tmp_path / "gateway.yaml"
    text = json.loads(stack.config().model_dump_json(exclude_defaults=True))
    found.write_text(yaml.safe_dump(text))
    return found


def used(file: Path) -> dict[str, float]:
    shown = called("limits", "show", "--config", str(file), "--key", "own")
    assert shown.returncode == 0, shown.stderr
    return {
        words[0]: float(words[-5 if "EUR" in words else -3]) for words in map(str.split, shown.stdout.splitlines()[1:])
    }


def audit(stack: Stack) -> list[dict[str, Any]]:
    headers = {"authorization": "Bearer root-key"}
    found: list[dict[str, Any]] = httpx.get(stack.admin_url + PATH + "/audit", headers=headers).json()["changes"]
    return found


def test_a_reset_names_its_limits_and_spares_budgets_that_are_not_named(stack: Stack, file: Path) -> None:
    before = used(file)
    assert before["few"] >= 2
    assert before["month"] >= 2
    words = ("limits", "reset", "--config", str(file), "--key", "own")
    refused = called(*words)
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert [line.split()[0] for line in refused.stderr.splitlines()] == ["limit", "few", "all", "dragoman:"]
    assert refused.stderr.endswith("without a terminal, give --yes, and these counters are set to zero\n")
    assert used(file) == before
    unknown = called(*words, "--yes", "--limit", "none")
    assert (unknown.returncode, unknown.stderr) == (2, "dragoman: no limit none applies: few, all, month\n")

    one = called(*words, "--yes", "--limit", "few")
    assert one.returncode == 0, one.stderr
    assert used(file) == {**before, "few": 0}
    every = called(*words, "--yes")
    assert every.returncode == 0
    assert "budgets stay as they are: month" in every.stderr
    assert used(file) == {"few": 0, "all": 0, "month": before["month"]}
    assert called(*words, "--yes", "--limit", "month").returncode == 0
    assert used(file)["month"] == 0
    lines = [(one["what"], one["name"], one["options"]) for one in audit(stack)[:3]]
    assert lines == [("reset", "key own", [name]) for name in ("month",)] + [
        ("reset", "key own", ["few", "all"]),
        ("reset", "key own", ["few"]),
    ]
    assert all("@" in one["by"] for one in audit(stack)[:3])


@pytest.mark.parametrize(("said", "status"), [("y\n", 0), ("YES\n", 0), ("\n", 1), ("n\n", 1), ("", 1)])
def test_a_person_is_asked(file: Path, monkeypatch: pytest.MonkeyPatch, said: str, status: int) -> None:
    before = used(file)
    monkeypatch.setattr("sys.stdin", Terminal(said))
    found = called("limits", "reset", "--config", str(file), "--key", "own")
    assert found.returncode == status
    assert "these counters are set to zero. Go on? [y/N]" in found.stderr
    assert used(file) == (before if status else {**before, "few": 0, "all": 0})


def test_what_cannot_be_recorded_is_not_done(server: Server, file: Path) -> None:
    before = used(file)
    server.command("SET", "{dragoman-keys}:held", "no stream")
    server.command("RENAME", "{dragoman-keys}:held", "{dragoman-keys}:audit")
    found = called("limits", "reset", "--config", str(file), "--key", "own", "--yes")
    server.command("DEL", "{dragoman-keys}:audit")
    assert found.returncode == 1
    assert "nothing was changed: the audit record cannot be written: WRONGTYPE" in found.stderr
    assert used(file) == before


def test_the_record_has_pages_over_both_of_its_streams(stack: Stack, server: Server, file: Path) -> None:
    server.command("DEL", "{dragoman-keys}:audit")
    headers = {"authorization": "Bearer root-key"}
    for number in range(3):
        httpx.post(stack.admin_url + PATH + "/keys", json={"name": f"k{number}"}, headers=headers).raise_for_status()
        assert called("limits", "reset", "--config", str(file), "--key", "own", "--yes").returncode == 0
    found: list[str] = []
    after = None
    while len(found) < 6:
        query = {"limit": 2} | ({"before": after} if after else {})
        page = httpx.get(stack.admin_url + PATH + "/audit", params=query, headers=headers).json()
        found += [line["what"] for line in page["changes"]]
        after = page["next"]
    assert found == ["reset", "create"] * 3


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("revoke", "app"), "the key app is refused for ever"),
        (("rotate", "app", "--valid", "0"), "the old secret of the key app is refused at once"),
        (("import", "revoked.jsonl"), "1 of 2 keys are refused for ever"),
    ],
)
def test_keys_are_taken_from_nobody_unasked(stack: Stack, tmp_path: Path, words: tuple[str, ...], what: str) -> None:
    (tmp_path / "admin.key").write_text("root-key")
    lines = [{"name": "a"}, {"name": "b", "revoked": 1.0}]
    (tmp_path / "revoked.jsonl").write_text("\n".join(map(json.dumps, lines)))
    before = audit(stack)
    more = ("--gateway", stack.admin_url, "--key-file", "admin.key")
    found = called("keys", *words, *more, folder=tmp_path)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == f"dragoman: nothing was changed: without a terminal, give --yes, and {what}\n"
    assert audit(stack) == before


def test_an_operator_without_a_name_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError

    monkeypatch.setattr("getpass.getuser", nobody)
    assert destructive.operator().startswith("?@")


def test_a_long_time_is_shown_in_whole_seconds(file: Path) -> None:
    shown = called("limits", "show", "--config", str(file), "--key", "own").stdout
    (month,) = [line for line in shown.splitlines() if line.startswith("month")]
    assert re.search(r" \d+h\d+m\d+s$", month), month
