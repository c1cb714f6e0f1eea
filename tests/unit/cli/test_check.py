"""`dragoman check`: every fault and hole at once, and which file it reads."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gateway.dialects import REGISTRY
from tests.support.commands import called, dragoman


def test_check_names_fallbacks_whose_context_is_no_longer(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    context = "fallback_on: [context_length], max_context: 100"
    path.write_text(
        "models:\n"
        f"  a: {{backend: vllm, workers: ['http://127.0.0.1:1'], fallback: [c], {context}}}\n"
        f"  b: {{backend: vllm, workers: ['http://127.0.0.1:2'], fallback: [c, d], {context}}}\n"
        "  c: {backend: vllm, workers: ['http://127.0.0.1:3'], max_context: 100}\n"
        "  d: {backend: vllm, workers: ['http://127.0.0.1:4']}\n"
    )
    said = [line for line in called("check", str(path)).stderr.splitlines() if "fallback_on" in line]
    assert said == ["warning: fallback_on context_length, model a: no fallback has a longer context"]


def test_a_last_line_says_that_rules_wait_for_values_that_are_wrong(tmp_path: Path) -> None:
    path, wait = tmp_path / "gateway.yaml", "dragoman: rules between options wait for these values"
    good = "{backend: vllm, workers: ['http://127.0.0.1:1'], price: {input: 1, output: 2}}"
    path.write_text(f"models:\n  a: {good}\n  b: {good.replace('input: 1', 'input: -1')}\n")
    said = called("check", str(path)).stderr.splitlines()
    assert [line.split(": ")[1] for line in said[:-1]] == ["models.b.price.0.input"]
    assert said[-1].startswith(wait)
    manifest = {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"gateway.yaml": path.read_text()}}
    (tmp_path / "all.yaml").write_text(json.dumps(manifest))
    assert called("check", "--rendered", str(tmp_path / "all.yaml")).stderr.splitlines()[-1].startswith(wait)
    path.write_text(f"models:\n  a: {good}\n")
    said = called("check", str(path)).stderr.splitlines()
    assert [line.split(": ")[1] for line in said] == ["spend.currency"]


def test_check_names_token_limits_that_one_request_uses_up(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(
        "models:\n"
        "  a: {backend: vllm, workers: ['http://127.0.0.1:1'], max_context: 1000}\n"
        "  b: {backend: vllm, workers: ['http://127.0.0.1:2'], max_context: 1000}\n"
        "  short: {backend: vllm, workers: ['http://127.0.0.1:3'], max_context: 999}\n"
        "  open: {backend: vllm, workers: ['http://127.0.0.1:4']}\n"
        "  e: {backend: vllm, workers: ['http://127.0.0.1:5'], max_context: 1000, features: [embeddings]}\n"
        "limiter: {reserve: maximum}\n"
        "limits:\n"
        "  - {name: soft, kind: tokens, limit: 1000, scope: [key], reserve: expected}\n"
        "  - {name: small, kind: tokens, limit: 1000, scope: [key], match: {model: [a, short, open, e]}}\n"
        "  - {name: large, kind: tokens, limit: 1001, scope: [key]}\n"
        "  - {name: tried, kind: tokens, limit: 10, scope: [key], shadow: true}\n"
        "  - {name: often, kind: requests, limit: 10, scope: [key]}\n"
    )
    said = [line for line in called("check", str(path)).stderr.splitlines() if line.startswith("warning: limit ")]
    assert said == [
        "warning: limit small, model a: a request without max_tokens reserves all of the limit of 1000, "
        "which is not above max_context (1000)"
    ]


def test_check_names_the_models_whose_workers_cannot_be_told_a_salt(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(
        "models:\n"
        "  v: {backend: vllm, workers: ['http://127.0.0.1:1']}\n"
        "  t: {backend: tgi, workers: ['http://127.0.0.1:2']}\n"
        f"keys: {{a: {{hash: 'sha256:{'ab' * 32}'}}}}\n"
        "cache_salt: {secret_file: salt}\n"
    )
    (tmp_path / "salt").write_text("canary-5e-" * 4)
    found = called("check", str(path))
    assert found.returncode == 0
    said = [line for line in found.stderr.splitlines() if "cache_salt" in line]
    assert said == ["warning: cache_salt, model t (tgi): all callers share what its workers cache"]
    assert "canary" not in found.stderr


@pytest.mark.feature("request_policies")
def test_check_names_policies_that_have_every_chat_refused(tmp_path: Path) -> None:
    """Clients of OpenAI's own API may send its workers any member; others get what OpenAI has."""
    path = tmp_path / "gateway.yaml"
    path.write_text(
        "models:\n"
        "  a: {backend: openai, workers: ['http://127.0.0.1:1']}\n"
        "  b: {backend: vllm, workers: ['http://127.0.0.1:2']}\n"
        "  e: {backend: openai, workers: ['http://127.0.0.1:3'], features: [embeddings]}\n"
        f"keys: {{k: {{hash: 'sha256:{'ab' * 32}'}}}}\n"
        "dialects: {friendli: {enabled: false}}\n"
        "request_policies:\n"
        "  house: {defaults: {min_p: 0.1}}\n"
        "  mine: {match: {key: [k]}, drop: [min_p], force: {seed: 4}}\n"
    )
    said = [line for line in called("check", str(path)).stderr.splitlines() if "request_policies" in line]
    assert len(said) == 1
    assert said[0].startswith(
        "warning: request_policies house, model a (openai): a member that they set is refused in every chat of "
    )
    assert ("anthropic" in said[0], "friendli" in said[0]) == (True, False)


def test_check_says_everything_at_once_and_never_a_traceback(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(
        "listen:\n  prot: 1\nmodels:\n  a: {backend: nothing, workers: [x]}\n  b: {backend: vllm, workers: [ftp://x]}\n"
    )
    found = called("check", str(bad))
    assert (found.returncode, found.stdout) == (2, "")
    *lines, last = found.stderr.splitlines()
    assert (len(lines), last.partition(":")[0]) == (3, "dragoman")
    assert all(re.match(rf"{re.escape(str(bad))}:\d+: [\w.]+: ", line) for line in lines), lines
    missing = called("check", str(tmp_path / "none.yaml"))
    assert missing.returncode == 2
    assert len(missing.stderr.splitlines()) == 1


@pytest.mark.long
def test_check_finds_its_file_as_serve_does_and_says_what_is_good(tmp_path: Path) -> None:
    model = "{backend: vllm, workers: ['http://127.0.0.1:1']}"
    (tmp_path / "gateway.yaml").write_text(
        f"models: {{a: {model}, b: {model}}}\ndialects: {{azure_inference: {{enabled: false}}}}\n"
    )
    (tmp_path / "other.yaml").write_text(f"models: {{a: {model}}}\nkeys: {{a: {{hash: 'sha256:{'ab' * 32}'}}}}\n")
    here = dragoman("check", folder=tmp_path)
    good = f"gateway.yaml: 2 models, 0 keys, {len(REGISTRY) - 1} dialects: good\n"
    assert (here.returncode, here.stdout, here.stderr) == (0, good, "")
    other = f"other.yaml: 1 model, 1 key, {len(REGISTRY)} dialects: good\n"
    assert called("check", "other.yaml", folder=tmp_path).stdout == other
    assert called("check", "--config", "other.yaml", folder=tmp_path).stdout == other
    assert called("check", folder=tmp_path, DRAGOMAN_CONFIG="other.yaml").stdout == other
    alone = json.dumps({"a": {"backend": "tgi", "workers": ["http://127.0.0.1:1"]}})
    (tmp_path / "gateway.yaml").unlink()
    said = called("check", "--holes", folder=tmp_path, DRAGOMAN_MODELS=alone)
    holes = len(said.stderr.splitlines())
    good = f"environment: 1 model, 0 keys, {len(REGISTRY)} dialects: good, but for {holes} holes"
    assert said.stdout == f"{good}\n"
    plain = called("check", "--strict", folder=tmp_path, DRAGOMAN_MODELS=alone)
    hint = "(parts of client APIs that workers refuse: --holes lists them)"
    assert (plain.returncode, plain.stdout, plain.stderr) == (0, f"{good} {hint}\n", "")
    strict = called("check", "--strict", "--holes", folder=tmp_path, DRAGOMAN_MODELS=alone)
    summary = f"environment: 1 model, 0 keys, {len(REGISTRY)} dialects: {holes} holes\n"
    assert (strict.returncode, strict.stdout, strict.stderr) == (1, "", said.stderr + summary)
