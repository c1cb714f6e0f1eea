"""`dragoman clients`: the lines of docs/clients.md, with one's own gateway and model."""

from __future__ import annotations

import json
import re
import shlex

import pytest
import yaml

from gateway import cli
from gateway.cli.clients import CLIENTS
from tests.acceptance.libraries.readme import AGENTS, VARIABLES, readme_lines
from tests.repo.tree import ROOT


def test_the_page_has_the_lines_of_agents() -> None:
    lines = readme_lines()
    page = (ROOT / "docs" / "clients.md").read_text()
    rows = dict(re.findall(r"^\| ([^|`]+) \| `([^`]+)` \|$", page, re.MULTILINE))
    assert rows == {name: lines[name] for name in (*AGENTS, *VARIABLES)}


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert cli.main(["clients", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("name", CLIENTS)
def test_each_has_ones_own_gateway_and_model(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, name, "--model", "org/llama-3.1", "--gateway", "https://llm.example:8443/")
    assert "https://llm.example:8443" in lines[0]
    assert not any(default in line for line in lines for default in ("127.0.0.1", "smollm2", "8443//"))
    assert "org/llama-3.1" in "\n".join(lines)
    assert all(line.startswith(("# ", "// ")) for line in lines[1:])


def test_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert [line.split()[0] for line in printed(capsys)] == list(CLIENTS)


def test_the_whole_line_of_claude_code(capsys: pytest.CaptureFixture[str]) -> None:
    line = printed(capsys, "claude-code", "--model", "llama", "--max-context", "50000")[0]
    assert dict(word.split("=", 1) for word in shlex.split(line)) == {
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:8080",
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": "llama",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "llama",
        "ANTHROPIC_DEFAULT_SONNET_MODEL": "llama",
        "ANTHROPIC_DEFAULT_OPUS_MODEL": "llama",
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "50000",
    }


def test_files_are_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    found = yaml.safe_load("\n".join(printed(capsys, "continue", "--model", "llama")))
    assert found["models"][0]["model"] == "llama"
    line = printed(capsys, "opencode", "--model", "llama")[0]
    told = json.loads(shlex.split(line)[0].removeprefix("OPENCODE_CONFIG_CONTENT="))
    assert told["provider"]["dragoman"]["models"] == {"llama": {}}


@pytest.mark.parametrize(
    "wrong",
    [
        ("claude-code", "--model", "$(reboot)"),
        ("claude-code", "--model", "a b"),
        ("claude-code", "--gateway", "https://x/;reboot"),
        ("claude-code", "--gateway", "llm.example"),
        ("claude-code", "--max-context", "0"),
        ("ollama-python", "--max-context", "5000"),
    ],
)
def test_what_a_shell_could_read_otherwise_is_refused(
    wrong: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["clients", *wrong]) != 0
    assert "--" in capsys.readouterr().err
