"""aider, unmodified and headless, with a simulated worker as its model (`make test-agents`). It offers no tools: it
writes the files that a model's text has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.agents.command import Ran, conversation, options, run, setting
from tests.acceptance.libraries.library import ROOT, locked
from tests.support.harness import Stack
from tests.unit.ratelimit.asking import made

pytestmark = pytest.mark.agents

PROGRAM = ROOT / ".venv-clients-aider" / "bin" / "aider"
WORKER = {"max_model_len": 200_000}
# The line of docs/clients.md names the small model.
MODEL = {"m": {"aliases": ["smollm2"]}}
QUIET = {"AIDER_ANALYTICS": "false", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
HEADLESS = ("--yes-always", "--no-git", "--no-check-update", "--no-show-release-notes", "--no-show-model-warnings")
EDIT = {"text": "I change it.\n\nnote.txt\n```\ngoodbye, in more than one word\n```\n"}


@pytest.fixture(autouse=True)
def told(record_property: Callable[[str, object], None]) -> None:
    record_property("client", f"aider {locked('clients-aider')['aider-chat']}")


def aider(url: str, home: Path, prompt: str, key: str = "any") -> Ran:
    """The line of docs/clients.md and the key are the whole configuration. It looks for a list of models, and goes on
    without."""
    (home / "work").mkdir()
    (home / "work" / "note.txt").write_text("hello\n")
    environ = {**setting("aider", url), "OPENAI_API_KEY": key, **QUIET}
    words = [str(PROGRAM), *options("aider", url), "--message", prompt, *HEADLESS, "note.txt"]
    return run(words, home, environ, asks=("raw.githubusercontent.com",))


@pytest.mark.parametrize("fault", ["", "eof@3"])
def test_a_file_is_edited(tmp_path: Path, fault: str) -> None:
    """Also by a worker that dies in a stream: it asks again, and what was cut is no edit."""
    with Stack((WORKER,), {"models": MODEL, "retry": {"attempts": 1}}) as stack:
        if fault:
            stack.sim.fault(fault, count=1, path="/v1/chat/completions")
        ran = aider(stack.url, tmp_path, conversation(EDIT))
        records = stack.records()
    assert ran.code == 0, ran.said[-2000:]
    assert (tmp_path / "work" / "note.txt").read_text() == "goodbye, in more than one word\n"
    assert "Applied edit to note.txt" in ran.said
    outcomes = [record["outcome"] for record in records]
    assert outcomes == (["failed", "ok"] if fault else ["ok"])
    assert {record["dialect"] for record in records} == {"openai"}


def test_an_expired_key_is_told_in_our_words(tmp_path: Path) -> None:
    key, entry = made("old", expires="2020-01-01")
    with Stack((WORKER,), {"models": MODEL, "keys": entry}) as stack:
        ran = aider(stack.url, tmp_path, "hi", key)
        records = stack.records()
    assert "expired" in ran.said
    assert key not in ran.said
    assert {record["status"] for record in records} == {401}
    assert (tmp_path / "work" / "note.txt").read_text() == "hello\n"
