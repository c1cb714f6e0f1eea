"""`dragoman translate` and the holes that `dragoman check` finds."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway import backends, dialects
from gateway.cli import main
from gateway.core.http import Response
from gateway.core.ports import Capabilities, Settings
from gateway.translation.offline import Refused, holes, reply, send
from tests.repo.tree import ROOT
from tests.support.clients import MEDIA, WAYS, Way, operation_of, usual

CHAT = b'{"messages":[{"role":"user","content":"hi"}]}'
WHOLE = (
    b'{"id":"chatcmpl-1","created":1,"model":"x","choices":[{"index":0,"message":{"role":"assistant","content":"Hello"},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
)
STREAM = (
    b'data: {"id":"chatcmpl-1","created":1,"model":"x","choices":[{"index":0,"delta":{"content":"Hello"},'
    b'"finish_reason":null}]}\n\ndata: {"id":"chatcmpl-1","created":1,"model":"x","choices":[{"index":0,"delta":{},'
    b'"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)
CAN = Capabilities("m")


class Ran:
    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    def go(*arguments: str, body: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(body)))
        status = main(["translate", *arguments])
        return Ran(status, *capfd.readouterr())

    return go


@pytest.mark.parametrize("backend", backends.REGISTRY)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_dialect_to_every_backend(way: Way, backend: str) -> None:
    made, target = dialects.create(way.dialect, Settings()), backends.create(backend)
    answer: Response | None = None
    try:
        body = json.dumps(way.body()).encode()
        crossing = send(made, target, body, CAN, route=way.route.name, query=way.example.query)
    except Refused as refused:
        answer = refused.response
    if answer is not None:
        assert answer.status in (400, 404, 422)
        assert json.loads(answer.body)
    else:
        assert crossing.outgoing.path.startswith("/")
        assert json.loads(crossing.outgoing.body)


@pytest.mark.parametrize("dialect", dialects.REGISTRY)
def test_a_route_is_found_by_the_members_of_the_body(dialect: str) -> None:
    made = dialects.create(dialect, Settings())
    seen: list[bytes] = []
    for operation, examples in made.examples.items():
        if examples[0].files:
            continue
        body = json.dumps(examples[0].body).encode()
        if body in seen:
            continue  # the usual operation is meant
        seen.append(body)
        crossing = send(made, backends.create("vllm"), body, CAN, query=examples[0].query)
        # A text to complete may be asked of a chat template.
        assert operation_of(crossing.op) in {operation, "chat" if operation == "complete" else operation}
        assert crossing.request.route in {example.route for example in examples}


def test_a_request(run: Any) -> None:
    ran = run("--from", "ollama_style", "--to", "vllm", "--model", "upstream", body=CHAT)
    assert ran.status == 0
    head, _, body = ran.out.partition("\n\n")
    assert head == "POST /v1/chat/completions"
    assert json.loads(body) == {"messages": [{"role": "user", "content": "hi"}], "model": "upstream"}


def test_dropped_fields_are_named(run: Any) -> None:
    ran = run("--from", "ollama_style", "--to", "vllm", body=CHAT[:-1] + b',"keep_alive":5}')
    assert (ran.status, ran.err) == (0, "dropped: keep_alive\n")


def test_a_route_a_query_and_headers(run: Any) -> None:
    ran = run(
        "--from", "azure_inference", "--to", "vllm",
        "--query", "api-version=2024-05-01", "--header", "extra-parameters: drop",
        body=CHAT[:-1] + b',"x":1}',
    )  # fmt: skip
    assert (ran.status, ran.err) == (0, "dropped: x\n")
    assert run("--from", "azure_inference", "--to", "vllm", body=CHAT).status == 1
    ran = run("--from", "ollama_style", "--to", "vllm", "--route", "sse", body=CHAT)
    assert json.loads(ran.out.partition("\n\n")[2])["stream"] is True
    ran = run("--from", "ollama_style", "--to", "vllm", "--route", "nowhere", body=CHAT)
    assert (ran.status, "chat, sse" in ran.err) == (2, True)


def test_a_former_name_of_a_dialect_is_read_with_a_warning(run: Any) -> None:
    ran = run("--from", "ollama_native", "--to", "vllm", "--route", "chat", body=CHAT)
    assert (ran.status, ran.err) == (0, "dragoman: warning: the dialect ollama_native is called ollama now\n")
    assert ran.out == run("--from", "ollama", "--to", "vllm", "--route", "chat", body=CHAT).out


@pytest.mark.parametrize(
    ("dialect", "body", "param"),
    [
        ("openai", b'{"messages":[{"role":"user","content":"hi"}],"temperature":9}', "temperature"),
        ("openai", b'{"prompt":"hi","max_tokens":"x"}', "max_tokens"),
        ("openai", b"{}", "messages"),
        ("openai", b"not JSON", None),
        ("friendli", b'{"messages":[{"role":"user","content":"hi"}],"logit_bias":7}', "logit_bias"),
        ("friendli", b'{"prompt":"hi","encoder_no_repeat_ngram":4}', "encoder_no_repeat_ngram"),
    ],
)
def test_an_error_is_the_clients_own(run: Any, dialect: str, body: bytes, param: str | None) -> None:
    ran = run("--from", dialect, "--to", "vllm", body=body)
    assert ran.status == 1
    assert json.loads(ran.out)["error"]["param"] == param
    assert ran.err.startswith("status 4")
    assert ran.out.endswith("}\n")


def test_what_is_asked_first_is_said(run: Any) -> None:
    common = ("--from", "friendli", "--model", "m", "--to")
    ran = run(*common, "vllm", body=b'{"prompt":"hi","max_total_tokens":9}')
    assert ran.status == 0
    assert ran.out.startswith("POST /v1/completions")
    assert 'POST /tokenize {"model":"m","prompt":"hi"}' in ran.err
    ran = run(*common, "openai", body=b'{"prompt":"hi","max_total_tokens":9}')
    assert ran.status == 1
    assert "/tokenize" not in run(*common, "vllm", body=b'{"prompt":"hi","max_tokens":9}').err


@pytest.mark.parametrize("target", [name for name in backends.REGISTRY if name != "openai"])
def test_every_request_of_a_list_of_seeds_is_shown(run: Any, tmp_path: Path, target: str) -> None:
    body = tmp_path / "body.json"
    body.write_text('{"prompt":"hi","max_tokens":9,"n":2,"seed":[5,9]}')
    common = ("--from", "friendli", "--to", target, "--body", str(body))
    shown = run(*common).out
    seeds = re.findall(r'"seed": (\d+)', shown)
    assert (shown.count("POST /"), seeds) == (2, ["5", "9"])
    assert "\n}\n\nPOST /" in shown
    ran = run(*common, "--reply", "-", body=WHOLE)
    assert "2 requests reach the worker: --reply is read as the reply to the first" in ran.err


@pytest.mark.parametrize("dialect", [way.dialect for way in map(usual, dialects.REGISTRY) if way.operation == "chat"])
def test_replies(run: Any, tmp_path: Path, dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.wire.clock.nanoseconds", lambda: 1)
    monkeypatch.setattr("gateway.wire.clock.seconds", lambda: 1)
    example = usual(dialect).example
    body, whole, stream = tmp_path / "body.json", tmp_path / "reply.json", tmp_path / "reply.txt"
    body.write_text(json.dumps(usual(dialect).body(stream=False)))
    whole.write_bytes(WHOLE)
    stream.write_bytes(STREAM)
    common = ("--from", dialect, "--to", "vllm", "--body", str(body), "--query", example.query.decode())
    ran = run(*common, "--reply", str(whole))
    assert (ran.status, "Hello" in ran.out) == (0, True)
    assert ran.out.endswith("}\n")
    again = run(*common, "--reply", "-", body=WHOLE)
    assert again.out == ran.out
    ran = run(*common, "--stream", "--reply", str(stream))
    assert (ran.status, "Hello" in ran.out) == (0, True)
    assert example.ends.decode() in ran.out[-120:]


@pytest.mark.parametrize("dialect", ["openai", "sagemaker"])
def test_a_reply_that_fails(run: Any, tmp_path: Path, dialect: str) -> None:
    body = tmp_path / "body.json"
    body.write_bytes(CHAT)
    common = ("--from", dialect, "--to", "vllm", "--body", str(body), "--reply", "-")
    ran = run(*common, "--stream", body=STREAM[:-20])
    assert (ran.status, "Hello" in ran.out, '"error"' in ran.out) == (1, True, True)
    ran = run(*common, "--stream", body=b"")
    assert (ran.status, ran.err) == (1, "status 502\n")
    ran = run(*common, "--status", "400", body=b'{"error":{"message":"no such thing","code":400}}')
    assert (ran.status, ran.err) == (1, "status 400\n")
    assert json.loads(ran.out)["error"]["message"] == "no such thing"


def test_options_that_mean_nothing_are_refused(run: Any, capfd: pytest.CaptureFixture[str]) -> None:
    ran = run("--from", "openai", "--to", "vllm", "--status", "400", body=CHAT)
    assert (ran.status, ran.out, ran.err) == (2, "", "dragoman: --status is of a reply: it needs --reply\n")
    for header in ("extra-parameters", ": drop"):
        with pytest.raises(SystemExit):
            run("--from", "azure_inference", "--to", "vllm", "--header", header, body=CHAT)
        assert "--header: must be NAME:VALUE" in capfd.readouterr().err


def test_files_that_are_not_there(run: Any, tmp_path: Path) -> None:
    ran = run("--from", "openai", "--to", "vllm", "--body", str(tmp_path / "none"))
    assert ran.status == 2
    assert "none" in ran.err


def test_embeddings() -> None:
    made, target = dialects.create("azure_inference", Settings()), backends.create("vllm")
    crossing = send(made, target, b'{"input":["a"]}', CAN, query=b"api-version=2024-05-01")
    answer = Response(200, [], b'{"data":[{"index":0,"embedding":[0.5]}],"model":"x","usage":{"prompt_tokens":1}}')
    assert json.loads(reply(made, target, crossing, answer))["data"][0]["embedding"] == [0.5]


# -- holes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", dialects.REGISTRY)
def test_everything_that_is_declared_reaches_vllm(dialect: str) -> None:
    assert holes(dialects.create(dialect, Settings()), backends.create("vllm"), CAN) == {}


def test_holes_of_a_backend() -> None:
    found = holes(dialects.create("openai", Settings()), backends.create("tgi"), CAN)
    assert list(found) == ["chat", "complete", "embed", *MEDIA]
    assert found["embed"] == "cannot be served: a tgi worker makes no embeddings"
    assert {"presence_penalty", "n", "logit_bias"} <= set(found["chat"].rpartition("there: ")[2].split(", "))


def test_holes_of_declared_features() -> None:
    can = Capabilities("m", features=frozenset({"completions", "json", "json_schema"}))
    found = holes(dialects.create("openai", Settings()), backends.create("vllm"), can)
    assert "tools" in found["chat"]
    assert "response_format" not in found["chat"]
    assert found["embed"].endswith("makes no embeddings")


CONFIG = """
models:
  small: {backend: BACKEND, workers: [http://127.0.0.1:1]}
dialects:
  sagemaker: {enabled: false}
"""


@pytest.mark.parametrize(
    ("backend", "arguments", "status"),
    [
        ("vllm", ["--strict", "--holes"], 0),
        ("tgi", ["--holes"], 0),
        ("tgi", ["--strict"], 0),
        ("tgi", ["--strict", "--holes"], 1),
    ],
)
def test_check_names_holes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], backend: str, arguments: list[str], status: int
) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(CONFIG.replace("BACKEND", backend))
    assert main(["check", str(path), *arguments]) == status
    lines = capfd.readouterr().err.splitlines()
    if status:
        assert lines.pop().endswith(f" {len(lines)} holes")
    assert all(line.startswith("hole: ") for line in lines)
    assert bool(lines) == (backend == "tgi" and "--holes" in arguments)
    assert not any("sagemaker" in line for line in lines)


# -- the page -------------------------------------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "translate.md").read_text()
SESSIONS = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)


def steps(session: str) -> list[tuple[str, str]]:
    """(command, what it prints) of each step; a here-document belongs to its command."""
    found = []
    for piece in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
        command, _, printed = piece.partition("\n")
        if "<<'END'" in command:
            document, _, printed = printed.partition("\nEND\n")
            command += f"\n{document}\nEND"
        found.append((command, printed))
    return found


@pytest.mark.long
@pytest.mark.parametrize("session", SESSIONS)
def test_what_the_page_shows_is_so(session: str, tmp_path: Path) -> None:
    python = f'dragoman() {{ "{sys.executable}" -m gateway.cli "$@"; }}\n'
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    for command, printed in steps(session):
        ran = subprocess.run(
            ["bash", "-c", python + command], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120
        )
        assert ran.stdout.rstrip("\n") == printed.rstrip("\n"), ran.stderr


def test_the_page_has_examples_and_every_option() -> None:
    assert len(SESSIONS) == 3
    for option in ("--from", "--to", "--route", "--model", "--stream", "--query", "--header", "--body", "--reply"):
        assert f"`{option}`" in PAGE
