"""`dragoman explain`."""

from __future__ import annotations

import json
from pathlib import Path

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


def ask(tmp_path: Path, *arguments: str, model: str | None = "m", turns: int = 1, config: str = CONFIG) -> int:
    (tmp_path / "gateway.yaml").write_text(config)
    messages = [{"role": ("user", "assistant")[turn % 2], "content": f"words {turn} " * 200} for turn in range(turns)]
    body = {"messages": messages, "max_tokens": 9} | ({"model": model} if model else {})
    (tmp_path / "body.json").write_text(json.dumps(body))
    return main(
        ["explain", "--config", str(tmp_path / "gateway.yaml"), "--body", str(tmp_path / "body.json"), *arguments]
    )


def test_it_names_worker_and_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(tmp_path) == 0
    first = capsys.readouterr().out
    assert "picked: prefix;why=home;matched=0.00" in first
    (tmp_path / "body.json").rename(tmp_path / "before.json")
    assert ask(tmp_path, "--seen", str(tmp_path / "before.json"), turns=3) == 0
    second = capsys.readouterr().out
    assert "why=prefix" in second
    assert second.splitlines()[1] == first.splitlines()[1], "it stays at its worker"


def test_other_dialects_and_sessions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(tmp_path, "--from", "anthropic", "--header", "x-session-id: s") == 0
    assert "why=session" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "model", "said"),
    [((), "other", "there are m, apart, found"), ((), "found", "--worker"), (("--seen", "/nowhere"), "m", "nowhere")],
)
def test_what_it_cannot_tell(
    tmp_path: Path, arguments: tuple[str, ...], model: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(tmp_path, *arguments, model=model) == 2
    assert said in capsys.readouterr().err


def test_workers_may_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(tmp_path, "--worker", "http://only:1", model="found") == 0
    assert "worker: http://only:1\npicked: only" in capsys.readouterr().out


def test_a_body_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wrong.json").write_text("{")
    assert ask(tmp_path, "--seen", str(tmp_path / "wrong.json")) == 1
    assert "error" in capsys.readouterr().err


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
def test_splits_and_fallbacks_are_told(
    tmp_path: Path, arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(tmp_path, *arguments, config=SPLIT) == 0
    told = capsys.readouterr().out
    assert said in told
    assert ("model: m\n" in told) == ("fallback: other (on unavailable, overloaded)\n" in told)


def test_a_key_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(tmp_path, "--key", "aq", config=SPLIT) == 2
    assert "there are qa, bound" in capsys.readouterr().err


def test_it_names_the_prefill_worker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(tmp_path, model="apart") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1] in ("prefill: http://p:1", "prefill: http://q:1")
    assert "why=home" in said[2]
    assert said[-2:] == ["worker: http://a:1", "picked: only"]
