"""`dragoman explain`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import main

CONFIG = """
models:
  m:
    backend: vllm
    workers: [http://a:1, http://b:1, http://c:1]
  apart:
    backend: vllm
    workers: [http://a:1]
    prefill: {workers: [http://p:1, http://q:1]}
  found:
    backend: vllm
    discover: {dns: "engines:8000"}
"""


Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs the command; returns its exit status, output and errors."""

    def run(*arguments: str, **more: Any) -> tuple[int, str, str]:
        status = explained(tmp_path, *arguments, **more)
        return (status, *capsys.readouterr())

    return run


def explained(tmp_path: Path, *arguments: str, model: str | None = "m", turns: int = 1, config: str = CONFIG) -> int:
    (tmp_path / "gateway.yaml").write_text(config)
    messages = [{"role": ("user", "assistant")[turn % 2], "content": f"words {turn} " * 200} for turn in range(turns)]
    body = {"messages": messages, "max_tokens": 9} | ({"model": model} if model else {})
    (tmp_path / "body.json").write_text(json.dumps(body))
    return main(
        ["explain", "--config", str(tmp_path / "gateway.yaml"), "--body", str(tmp_path / "body.json"), *arguments]
    )


def test_a_name_by_pattern_and_of_a_key(ask: Ask) -> None:
    digest = "sha256:" + "ab" * 32
    config = f"""
models:
  one: {{backend: vllm, workers: ["http://a:1"], aliases: ["claude-*"]}}
  two: {{backend: vllm, workers: ["http://b:1"]}}
keys:
  k: {{hash: "{digest}", aliases: {{"claude-haiku*": two}}}}
"""
    assert "http://a:1" in ask(model="claude-haiku-4-5", config=config)[1]
    assert "http://b:1" in ask("--key", "k", model="claude-haiku-4-5", config=config)[1]
    assert "http://a:1" in ask("--key", "k", model="claude-opus-4-1", config=config)[1]
    assert ask(model="claudia", config=config)[0] != 0


def test_it_names_worker_and_reason(tmp_path: Path, ask: Ask) -> None:
    _, first, _ = ask()
    assert "picked: prefix;why=home;matched=0.00" in first
    (tmp_path / "body.json").rename(tmp_path / "before.json")
    status, second, _ = ask("--seen", str(tmp_path / "before.json"), turns=3)
    assert status == 0
    assert "why=prefix" in second
    assert second.splitlines()[1] == first.splitlines()[1], "it stays at its worker"


def test_other_dialects_sessions_and_workers_may_be_named(ask: Ask) -> None:
    assert "why=session" in ask("--from", "anthropic", "--header", "x-session-id: s")[1]
    assert "worker: http://only:1\npicked: only" in ask("--worker", "http://only:1", model="found")[1]


def test_what_it_cannot_tell(tmp_path: Path, ask: Ask) -> None:
    (tmp_path / "wrong.json").write_text("{")
    for arguments, more, status, words in (
        ((), {"model": "other"}, 2, "there are m, apart, found"),
        ((), {"model": "found"}, 2, "--worker"),
        (("--seen", "/nowhere"), {}, 2, "nowhere"),
        (("--key", "aq"), {"config": SPLIT}, 2, "there are qa, bound"),
        (("--seen", str(tmp_path / "wrong.json")), {}, 1, "error"),
    ):
        found, _, error = ask(*arguments, **more)
        assert (found, words in error) == (status, True)


SPLIT = """
models:
  m:
    backend: vllm
    workers: [http://a:1]
    fallback: [other]
    split:
      - {model: next, headers: {x-canary: "1"}}
      - {model: next, keys: [qa]}
      - {model: next, share: 0.5}
  next: {backend: vllm, workers: [http://b:1]}
  other: {backend: vllm, workers: [http://c:1]}
keys:
  qa: {hash: "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}
  bound: {hash: "sha256:8f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", models: [m]}
"""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--header", "x-canary: 1"), "split: m -> next\nmodel: next\nworker: http://b:1\n"),
        (("--key", "qa"), "split: m -> next\nmodel: next\n"),
        (("--key", "bound"), "model: m\nworker: http://a:1\n"),
        ((), "drawn: by chance, for this run\nmodel: "),
    ],
)
def test_splits_and_fallbacks_are_printed(arguments: tuple[str, ...], said: str, ask: Ask) -> None:
    status, out, _ = ask(*arguments, config=SPLIT)
    assert (status, said in out) == (0, True)
    assert ("model: m\n" in out) == ("fallback: other (on transient, account)\n" in out)


def test_it_names_the_prefill_worker(ask: Ask) -> None:
    said = ask(model="apart")[1].splitlines()
    assert said[1] in ("prefill: http://p:1", "prefill: http://q:1")
    assert "why=home" in said[2]
    assert said[-2:] == ["worker: http://a:1", "picked: only"]


def test_what_became_of_a_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = {
        "event": "request", "id": "4f1d", "outcome": "failed", "code": "upstream_truncated", "model": "m",
        "worker": "http://b:1", "attempts": 4, "picked": "prefix;why=load;matched=0.00", "moved": ["late"],
        "continued": ["died", "stalled"], "recomputed": 178, "not_continued": "no_worker",
        "workers": ["http://a:1", "http://c:1", "http://a:1", "http://b:1"], "reasons": ["refused", "other"],
    }  # fmt: skip
    log = tmp_path / "log"
    log.write_text(
        f'{json.dumps({**record, "id": "first"})}\n{json.dumps(record)}\n{{"event":"worker down"}}\nnot JSON\n'
    )
    assert main(["explain", "--record", str(log)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "request: 4f1d, failed (upstream_truncated)",
        "workers failed, in order: refused (it refuses connections: nothing listens at its port), other",
        "model: m",
        "worker: http://b:1, the last of 4 attempts",
        "workers, in order: http://a:1, http://c:1, http://a:1, http://b:1",
        "picked: prefix;why=load;matched=0.00",
        "moved before its client had seen anything: the first token was late",
        "went on in mid-stream: its worker died, its worker stalled; 178 tokens computed again",
        "did not go on: no_worker (docs/reliability.md has the reasons)",
    ]
    log.write_text(json.dumps({**record, "code": "no_worker_available", "attempts": 0, "reasons": ["ca_unknown"]}))
    assert main(["explain", "--record", str(log)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "request: 4f1d, failed (no_worker_available)",
        "workers are not ready: ca_unknown (it has a certificate of an authority that is not trusted here (`ca_file`))",
        "worker: none was asked",
    ]
    log.write_text("")
    assert main(["explain", "--record", str(log)]) != 0
    assert "no record" in capsys.readouterr().err
