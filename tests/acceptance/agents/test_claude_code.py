"""Claude Code, unmodified and headless, with a simulated worker as its model (`make test-agents`)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
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
from tests.support.standins.web import web
from tests.unit.ratelimit.asking import made

pytestmark = pytest.mark.agents

PROGRAM = PACKAGES / "@anthropic-ai" / f"claude-code-linux-{'arm64' if os.uname().machine == 'aarch64' else 'x64'}"
WORKER = {"max_model_len": 200_000}


@pytest.fixture(autouse=True)
def told(record_property: Callable[[str, object], None]) -> None:
    record_property("client", f"Claude Code {version('@anthropic-ai/claude-code')}")


def claude(
    url: str, home: Path, prompt: str, key: str = "any", more: tuple[str, ...] = (), settings: Mapping[str, str] = {}
) -> Ran:
    """The line of docs/clients.md, the key and the model's name are the whole configuration; the rest keeps the agent
    from calling home."""
    line = setting("Claude Code", url)
    environ = {
        **{name: "m" if value == "smollm2" else value for name, value in line.items()},
        "ANTHROPIC_AUTH_TOKEN": key,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        **settings,
    }
    options = ["--output-format", "stream-json", "--verbose", "--allowedTools", "Read,Edit,Write,Bash"]
    return run([str(PROGRAM / "claude"), "-p", prompt, *options, *more], home, environ)


def results(ran: Ran) -> list[dict[str, Any]]:
    """The results of tools that it sent back, in their order."""
    return [
        block
        for event in ran.events
        if event["type"] == "user"
        for block in event["message"]["content"]
        if block["type"] == "tool_result"
    ]


def test_a_task_with_tools(tmp_path: Path) -> None:
    """Reads, edits, runs two commands at once, sees one fail, is cut off by length, and ends."""
    (tmp_path / "work").mkdir()
    note = tmp_path / "work" / "note.txt"
    note.write_text("hello\n")
    prompt = conversation(
        {"text": "Let me look.", "tool_calls": [call("Read", file_path=str(note))]},
        {"tool_calls": [call("Edit", file_path=str(note), old_string="hello", new_string="goodbye")]},
        {"tool_calls": [call("Bash", command="cat note.txt"), call("Bash", command="echo $((6 * 7))")]},
        {"tool_calls": [call("Bash", command="echo broken >&2; exit 3")]},
        {"reasoning": "Hm.", "tool_calls": [call("Write", file_path=str(note) + ".new", content="new")]},
        {"tool_calls": [call("Bash", command="ls")]},
        {"text": "A long ans", "finish": "length"},
        {"text": "wer. All done."},
    )
    with Stack(({**WORKER, "reasoning": True},)) as stack:
        ran = claude(stack.url, tmp_path, prompt)
        records = stack.records()
    assert ran.code == 0, ran.said[-2000:]
    assert note.read_text() == "goodbye\n"
    assert Path(str(note) + ".new").read_text() == "new"
    said = [str(result["content"]) for result in results(ran)]
    assert "hello" in said[0]
    assert set(said[2:4]) == {"goodbye", "42"}
    assert "broken" in said[4]
    assert results(ran)[4]["is_error"]
    assert "note.txt.new" in said[6]
    assert ran.events[-1]["result"].endswith("All done.")
    assert ran.events[-1]["usage"]["output_tokens"] == sum(record["usage"]["output"] for record in records)
    assert {(record["dialect"], record["outcome"]) for record in records} == {("anthropic", "ok")}
    assert len(records) >= 8


def test_a_conversation_keeps_its_prefix_in_the_workers_caches(tmp_path: Path) -> None:
    """A model that it knows by name is told how many tokens are left, each time anew: behind all that was sent before.
    So is what a conversation adds that is continued by another process."""
    prompt = conversation(
        *({"tool_calls": [call("Bash", command=f"echo {number}")]} for number in range(3)), {"text": "So."}
    )
    settings = {"ANTHROPIC_MODEL": "claude-opus-4-6"}
    with Stack((WORKER,), {"models": {"m": {"aliases": ["claude-*"]}}}) as stack:
        first = claude(stack.url, tmp_path, prompt, settings=settings)
        again = "Go on. " + conversation({"text": "All done."})
        second = claude(stack.url, tmp_path, again, more=("--continue",), settings=settings)
        prompts = [json.loads(entry.body) for entry in stack.sim.entries]
    assert (first.code, second.code) == (0, 0), first.said[-2000:] + second.said[-2000:]
    assert "tokens left" in str(prompts[-1]["messages"])
    assert len(prompts) == 5
    assert_each_begins_with_the_last(prompts)


@pytest.mark.parametrize("fault", ["status:500", "eof@headers", "reset@3", "eof@3"])
def test_a_worker_that_dies_before_or_in_a_stream(tmp_path: Path, fault: str) -> None:
    """It asks again, and goes on where it was: a cut stream is no end to it."""
    prompt = conversation(
        {"tool_calls": [call("Bash", command="echo one > one")]},
        {"text": "This is a sentence that the fault may cut.", "tool_calls": [call("Bash", command="echo two > two")]},
        {"tool_calls": [call("Bash", command="echo three > three")]},
        {"text": "All done."},
    )
    with Stack((WORKER,), {"retry": {"attempts": 1}}) as stack:
        stack.sim.fault(fault, count=1, skip=1, path="/v1/chat/completions")
        ran = claude(stack.url, tmp_path, prompt)
        outcomes = [record["outcome"] for record in stack.records()]
    assert ran.code == 0, ran.said[-2000:]
    assert ran.events[-1]["result"] == "All done."
    assert (tmp_path / "work" / "three").read_text() == "three\n"
    assert outcomes.count("failed") == 1
    assert set(outcomes) == {"ok", "failed"}


def test_a_limit_is_waited_for(keyed: Keyed, tmp_path: Path) -> None:
    prompt = conversation(
        *({"tool_calls": [call("Bash", command=f"echo {number}")]} for number in range(3)), {"text": "All done."}
    )
    with keyed.over_the_limit():
        ran = claude(keyed.stack.url, tmp_path, prompt, keyed.keys["busy"])
    assert ran.code == 0, ran.said[-2000:]
    assert ran.events[-1]["result"] == "All done."


def test_an_expired_key_is_told_in_our_words(tmp_path: Path) -> None:
    key, entry = made("old", expires="2020-01-01")
    with Stack((WORKER,), {"keys": entry}) as stack:
        ran = claude(stack.url, tmp_path, "hi", key)
        records = stack.records()
    assert ran.code != 0
    assert "expired" in ran.events[-1]["result"], ran.said
    assert key not in ran.events[-1]["result"]
    assert {record["status"] for record in records} == {401}


def test_a_conversation_that_outgrows_the_context_is_compacted(tmp_path: Path) -> None:
    """The worker refuses the prompt; told in words that it knows, the agent makes a summary and goes on from there."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "long.txt").write_text("word " * 5000)
    after = conversation({"text": "All done."}, words="Summary: the long file was read.")
    prompt = conversation(
        *({"tool_calls": [call("Bash", command="cat long.txt")]} for _ in range(8)),
        asked={"summary of the conversation": {"text": after}},
    )
    with Stack(({"max_model_len": 60_000},)) as stack:
        ran = claude(stack.url, tmp_path, prompt)
        records = stack.records()
    assert ran.code == 0, ran.said[-2000:]
    assert "All done." in ran.events[-1]["result"]
    assert any(event.get("subtype") == "compact_boundary" for event in ran.events)
    assert any(record["code"] == "context_length_exceeded" for record in records)


def test_a_real_answer(gateway: str, tmp_path: Path) -> None:
    """Streamed, from the small model of `make run`, which calls no tools and has no room for its own instructions."""
    more = ("--tools", "", "--system-prompt", "Be short.", "--include-partial-messages")
    # It goes on three times where an answer is cut off by its length.
    settings = {"ANTHROPIC_MODEL": "smollm2", "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "12"}
    ran = claude(gateway, tmp_path, "What is the capital of France?", more=more, settings=settings)
    deltas = [event["event"].get("delta", {}) for event in ran.events if event["type"] == "stream_event"]
    pieces = [delta["text"] for delta in deltas if delta.get("type") == "text_delta"]
    assert len(pieces) > 1, ran.said[-2000:]
    assert "".join(pieces).strip()


def test_a_search_that_nothing_here_runs_is_told_as_such(tmp_path: Path) -> None:
    """A request of its own asks for the search. Its answer is an error of the tool, and not the model's invention."""
    prompt = conversation(
        {"tool_calls": [call("ToolSearch", query="select:WebSearch", max_results=1)]},
        {"tool_calls": [call("WebSearch", query="the weather in Oslo")]},
        {"text": "All done."},
    )
    with Stack((WORKER,)) as stack:
        ran = claude(stack.url, tmp_path, prompt, more=("--allowedTools", "WebSearch"))
        asked = [entry.body for entry in stack.sim.entries]
        records = stack.records()
    assert ran.code == 0, ran.said[-2000:]
    assert "Web search error: unavailable" in str(results(ran)[1]["content"])
    assert ran.events[-1]["result"] == "All done."
    assert not any(b"Perform a web search" in body for body in asked)
    assert [record["attempts"] for record in records].count(0) == 1


def test_a_search_that_the_gateway_runs(tmp_path: Path) -> None:
    """Its own request for the search is answered by the service's results, and a text about them."""
    search = {"tool_calls": [call("web_search", query="the weather in Oslo")]}
    prompt = conversation(
        {"tool_calls": [call("ToolSearch", query="select:WebSearch", max_results=1)]},
        {"tool_calls": [call("WebSearch", query=conversation(search, {"text": "It rains."}))]},
        {"text": "All done."},
    )
    with web() as service, Stack((WORKER,), {"tools": {"web_search": {"url": service.url}}}) as stack:
        ran = claude(stack.url, tmp_path, prompt, more=("--allowedTools", "WebSearch"))
        records = stack.records()
    assert ran.code == 0, ran.said[-2000:]
    found = str(results(ran)[1]["content"])
    assert "Weather in Oslo" in found
    assert f"{service.url}/page" in found
    assert "It rains." in found
    assert [record["tools"] for record in records if "tools" in record] == [["search"]]


@pytest.mark.parametrize("named", ["opus", "sonnet", "haiku"])
def test_a_model_by_a_name_of_its_own(tmp_path: Path, named: str) -> None:
    """The line has a variable for each."""
    settings = {"CLAUDE_CODE_MAX_CONTEXT_TOKENS": "50000", "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "4000"}
    with Stack((WORKER,)) as stack:
        ran = claude(stack.url, tmp_path, conversation({"text": "Hi."}), more=("--model", named), settings=settings)
        outcomes = {(record["model"], record["outcome"]) for record in stack.records()}
    assert (ran.code, ran.events[-1]["result"]) == (0, "Hi.")
    assert outcomes == {("m", "ok")}
    (usage,) = ran.events[-1]["modelUsage"].values()
    assert usage["contextWindow"] == 50_000
