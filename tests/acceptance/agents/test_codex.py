"""Codex, unmodified and headless, with a simulated worker as its model (`make test-agents`)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gateway.dialects.responses import compaction
from tests.acceptance.agents.command import (
    PACKAGES,
    Ran,
    assert_each_begins_with_the_last,
    call,
    conversation,
    options,
    run,
    setting,
    version,
)
from tests.acceptance.libraries.conftest import Keyed
from tests.support.harness import Stack
from tests.unit.ratelimit.asking import made

pytestmark = pytest.mark.agents

PAGE = Path(__file__).resolve().parents[3] / "docs" / "dialects" / "responses.md"
QUESTION = "What is the capital of France?"
CAPITAL: dict[str, Any] = {
    "type": "object",
    "properties": {"capital": {"type": "string", "enum": ["London", "Paris", "Rome"]}},
    "required": ["capital"],
    "additionalProperties": False,
}
MACHINE = "aarch64" if os.uname().machine == "aarch64" else "x86_64"
PACKAGE = PACKAGES / "@openai" / f"codex-linux-{'arm64' if MACHINE == 'aarch64' else 'x64'}"
PROGRAM = PACKAGE / "vendor" / f"{MACHINE}-unknown-linux-musl" / "bin" / "codex"
WORKER = {"max_model_len": 200_000}
SOCKETS = ("-c", "model_providers.dragoman.supports_websockets=true")
# The sections keep it from calling home.
SETTINGS = """
check_for_update_on_startup = false
analytics.enabled = false
features.plugins = false
features.apps = false
"""


@pytest.fixture(autouse=True)
def told(record_property: Callable[[str, object], None]) -> None:
    record_property("client", f"Codex {version('@openai/codex')}")


def codex(
    url: str,
    home: Path,
    prompt: str,
    key: str = "any",
    settings: str = "",
    model: str = "m",
    more: tuple[str, ...] = (),
    provider: tuple[str, ...] = (),
    timeout: float = 400,
) -> Ran:
    """With its line of docs/clients.md, which are its options, unless others are given as `provider`."""
    folder = home / "codex"
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(f'model = "{model}"\n{settings}{SETTINGS}')
    told = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    environ = {**setting("Codex", url), "CODEX_HOME": str(folder), "CODEX_API_KEY": key}
    if key != "any":
        environ["DRAGOMAN_KEY"] = key
    # The model's name is the only word of the line that a test changes.
    chosen = provider or [model if word == "smollm2" else word for word in options("Codex", url)]
    arguments = [str(PROGRAM), "exec", *chosen, *told, *more, prompt]
    return run(arguments, home, environ, timeout)


def items(ran: Ran, kind: str) -> list[dict[str, Any]]:
    """The completed items of this kind."""
    found = [event["item"] for event in ran.events if event["type"] == "item.completed"]
    return [item for item in found if item["type"] == kind]


def shell(command: str) -> dict[str, Any]:
    # Without more it tells after 10 s what there is, whether or not the command has ended.
    return call("exec_command", cmd=command, yield_time_ms=30_000)


def test_a_task_with_tools(tmp_path: Path) -> None:
    """Reads, edits, runs two commands at once, sees one fail, and ends."""
    (tmp_path / "work").mkdir()
    note = tmp_path / "work" / "note.txt"
    note.write_text("hello\n")
    prompt = conversation(
        {"text": "Let me look.", "tool_calls": [shell("cat note.txt")]},
        {"tool_calls": [shell("sed -i s/hello/goodbye/ note.txt")]},
        {"tool_calls": [shell("cat note.txt"), shell("echo $((6 * 7))")]},
        {"tool_calls": [shell("echo broken >&2; exit 3")]},
        {"reasoning": "Hm.", "tool_calls": [shell("echo new > other.txt")]},
        {"tool_calls": [shell("ls")]},
        {"text": "All done."},
    )
    with Stack(({**WORKER, "reasoning": True},)) as stack:
        ran = codex(stack.url, tmp_path, prompt)
        records = stack.records()
        prompts = [json.loads(entry.body) for entry in stack.sim.entries]
    assert ran.code == 0, ran.said[-2000:]
    assert_each_begins_with_the_last(prompts)
    assert note.read_text() == "goodbye\n"
    ends = [(item["aggregated_output"], item["exit_code"]) for item in items(ran, "command_execution")]
    assert ends[0] == ("hello\n", 0)
    assert {("goodbye\n", 0), ("42\n", 0)} <= set(ends)
    assert ("broken\n", 3) in ends
    assert ends[-1] == ("note.txt\nother.txt\n", 0)
    assert items(ran, "agent_message")[-1]["text"] == "All done."
    assert ran.events[-1]["usage"]["output_tokens"] == sum(record["usage"]["output"] for record in records)
    assert {(record["dialect"], record["outcome"]) for record in records} == {("responses", "ok")}
    assert len(records) == 7


@pytest.mark.parametrize("fault", ["status:500", "eof@headers", "reset@3", "eof@3"])
def test_a_worker_that_dies_before_or_in_a_stream(tmp_path: Path, fault: str) -> None:
    """It asks again: a cut stream is no end to it."""
    prompt = conversation(
        {"tool_calls": [shell("echo one > one")]},
        {"text": "This is a sentence that the fault may cut.", "tool_calls": [shell("echo two > two")]},
        {"text": "All done."},
    )
    with Stack((WORKER,), {"retry": {"attempts": 1}}) as stack:
        stack.sim.fault(fault, count=1, skip=1, path="/v1/chat/completions")
        ran = codex(stack.url, tmp_path, prompt)
        outcomes = [record["outcome"] for record in stack.records()]
    assert ran.code == 0, ran.said[-2000:]
    assert items(ran, "agent_message")[-1]["text"] == "All done."
    assert (tmp_path / "work" / "two").read_text() == "two\n"
    assert outcomes.count("failed") == 1
    assert set(outcomes) == {"ok", "failed"}


@pytest.mark.parametrize("more", [(), SOCKETS], ids=["post", "socket"])
def test_a_limit_is_waited_for(keyed: Keyed, tmp_path: Path, more: tuple[str, ...]) -> None:
    prompt = conversation(*({"tool_calls": [shell(f"echo {number}")]} for number in range(3)), {"text": "All done."})
    with keyed.over_the_limit():
        ran = codex(keyed.stack.url, tmp_path, prompt, keyed.keys["busy"], more=more)
    assert ran.code == 0, ran.said[-2000:]
    assert items(ran, "agent_message")[-1]["text"] == "All done."


def test_an_expired_key_is_told_in_our_words(tmp_path: Path) -> None:
    key, entry = made("old", expires="2020-01-01")
    with Stack((WORKER,), {"keys": entry}) as stack:
        ran = codex(stack.url, tmp_path, "hi", key)
        records = stack.records()
    assert ran.code != 0
    assert "expired" in ran.said
    assert key not in ran.said
    assert {record["status"] for record in records} == {401}


def test_an_answer_that_length_cut_off_is_no_success(tmp_path: Path) -> None:
    """It says so and ends with an error."""
    with Stack((WORKER,)) as stack:
        ran = codex(stack.url, tmp_path, conversation({"text": "A long ans", "finish": "length"}))
    assert ran.events[-1]["type"] == "turn.failed", ran.said[-2000:]


def failing(home: Path, fault: str) -> str:
    """What it prints when every stream of its worker fails in the same way behind some text."""
    prompt = conversation({"text": "This is a sentence that the fault cuts.", "fault": fault})
    more = ("-c", "model_providers.dragoman.stream_max_retries=0")
    with Stack(({**WORKER, "itl_ms": 20},), {"retry": {"attempts": 1}}) as stack:
        ran = codex(stack.url, home, prompt, more=more)
    assert ran.events[-1]["type"] == "turn.failed", ran.said[-2000:]
    return str(ran.events[-1]["error"]["message"])


def test_a_failed_stream_is_told_in_our_words(tmp_path: Path) -> None:
    """A cut behind `response.failed` would hide them."""
    assert failing(tmp_path, "reset@3").endswith(": the worker closed the connection before its answer was complete")


def test_an_overloaded_worker_is_told_as_such(tmp_path: Path) -> None:
    """By the code of `response.failed`."""
    assert "at capacity" in failing(tmp_path, "error-frame:503@3")


def test_a_conversation_is_compacted(tmp_path: Path) -> None:
    """The summary is an ordinary request, without tools, and the conversation goes on from it."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "long.txt").write_text("word " * 5000)
    after = conversation({"text": "All done."}, words="Summary: the long file was read.")
    prompt = conversation(
        *({"tool_calls": [call("exec_command", cmd="cat long.txt", max_output_tokens=6000)]} for _ in range(8)),
        asked={"CHECKPOINT": {"text": after}},
    )
    settings = "model_context_window = 40000\nmodel_auto_compact_token_limit = 20000\n"
    with Stack((WORKER,)) as stack:
        ran = codex(stack.url, tmp_path, prompt, settings=settings)
        records = stack.records()
    assert ran.code == 0, ran.said[-2000:]
    assert items(ran, "agent_message")[-1]["text"] == "All done."
    assert {record["outcome"] for record in records} == {"ok"}


def test_a_conversation_is_compacted_by_the_gateway(tmp_path: Path) -> None:
    """With `openai_base_url` Codex takes the gateway for OpenAI's server: it wants the summary as an item that it does
    not read, and goes on from there."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "long.txt").write_text("word " * 5000)
    reading = [call("exec_command", cmd="cat long.txt", max_output_tokens=6000)]
    again = conversation({"tool_calls": reading}, {"text": "All done."}, words="Summary: the long file was read.")
    prompt = conversation(*({"tool_calls": reading} for _ in range(8)), asked={compaction.ASK: {"text": again}})
    settings = "model_context_window = 40000\nmodel_auto_compact_token_limit = 20000\n"
    with Stack((WORKER,)) as stack:
        provider = ("-c", f'openai_base_url="{stack.url}/v1"')
        ran = codex(stack.url, tmp_path, prompt, settings=settings, provider=provider)
        records = stack.records()
        prompts = [json.loads(entry.body) for entry in stack.sim.entries]
    assert ran.code == 0, ran.said[-2000:]
    assert items(ran, "agent_message")[-1]["text"] == "All done."
    asking = [index for index, found in enumerate(prompts) if found["messages"][-1]["content"] == compaction.ASK]
    assert asking, "it was not compacted"
    before, after = prompts[asking[0]], prompts[asking[0] + 1]
    assert "tools" not in before
    assert after["messages"][-1]["content"].endswith(again)
    assert len(after["messages"]) < len(before["messages"])
    assert after["tools"]
    assert {(record["status"], record["outcome"]) for record in records} == {(200, "ok")}


@pytest.mark.parametrize("fault", [None, "status:500", "reset@3", "eof@3"])
@pytest.mark.parametrize("own", [False, True])
def test_a_task_over_a_web_socket(tmp_path: Path, own: bool, fault: str | None) -> None:
    """Codex's own provider, and that of docs/clients.md if it may. It warms up, and each turn sends its news alone."""
    (tmp_path / "work").mkdir()
    prompt = conversation(
        {"text": "Let me write.", "tool_calls": [shell("echo one > one")]},
        {"text": "This is a sentence that the fault may cut.", "tool_calls": [shell("cat one")]},
        {"text": "All done."},
    )
    with Stack((WORKER,), {"retry": {"attempts": 1}}) as stack:
        chosen = ("-c", f'openai_base_url="{stack.url}/v1"') if own else ()
        if fault is not None:
            stack.sim.fault(fault, count=1, skip=2, path="/v1/chat/completions")
        opened = Mock(wraps=stack.gateway.opens_socket)
        stack.server.protocol.opens = opened
        ran = codex(stack.url, tmp_path, prompt, more=() if own else SOCKETS, provider=chosen)
        records = stack.records()
        sent = [json.loads(entry.body) for entry in stack.sim.entries]
    assert ran.code == 0, ran.said[-2000:]
    assert opened.called
    assert items(ran, "agent_message")[-1]["text"] == "All done."
    assert "one\n" in [item["aggregated_output"] for item in items(ran, "command_execution")]
    outcomes = [record["outcome"] for record in records]
    assert outcomes.count("failed") == (fault is not None), outcomes
    assert set(outcomes) <= {"ok", "failed"}, outcomes
    warm = [one["max_tokens"] for one in sent if one.get("max_tokens") == 1]
    assert warm, "it warms up"


def without_tools() -> str:
    """The settings of docs/dialects/responses.md for a model that cannot call tools, by docs/clients.md's provider."""
    blocks: list[str] = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (found,) = [block for block in blocks if "shell_tool" in block]
    settings = found.partition("[model_providers")[0]
    return "".join(one for one in settings.splitlines(True) if not one.startswith(("model =", "model_provider =")))


def test_a_real_answer(gateway: str, tmp_path: Path) -> None:
    """Streamed, from the small model of `make run`, which calls no tools and has no room for Codex's own instructions.
    Codex sets no bound to an answer, so a schema does."""
    home = tmp_path / "codex"
    home.mkdir()
    (home / "short.md").write_text("Be short.\n")
    (home / "schema.json").write_text(json.dumps(CAPITAL))
    more = ("--output-schema", str(home / "schema.json"))
    ran = codex(gateway, tmp_path, QUESTION, settings=without_tools(), model="smollm2", more=more, timeout=500)
    assert ran.code == 0, ran.said[-2000:]
    answer = json.loads(items(ran, "agent_message")[-1]["text"])
    assert answer["capital"] in CAPITAL["properties"]["capital"]["enum"]


def test_a_real_model_without_tools_says_so(gateway: str, tmp_path: Path) -> None:
    """The small model of `make run` cannot call tools, and Codex offers some unless it is told otherwise."""
    ran = codex(gateway, tmp_path, QUESTION, model="smollm2")
    assert ran.code != 0
    assert "this model cannot call tools" in ran.said
