"""`dragoman worker vllm` without vLLM: a stand-in engine that speaks its wire is launched, drained, and dies."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.harness import until
from tests.support.ports import free_port
from tests.support.redis_server import Server
from workers.vllm import main
from workers.vllm.engine import Engine
from workers.vllm.facts import BEYOND, PROCESSORS, abilities, flag, takes_processors, telling
from workers.vllm.sequences import Forbidden, asked

ROOT = Path(__file__).resolve().parents[3]

# In the place of an interpreter with vLLM: notes its own words, then is the simulated worker on that port.
INTERPRETER = """#!{python}
import json, os, sys
words = sys.argv[1:]
if words[0] == "-c":  # asked for vLLM
    sys.exit(0)
assert words[:2] == ["-m", "vllm.entrypoints.openai.api_server"], words
json.dump({{"words": words, "pid": os.getpid()}}, open({notes!r}, "w"))
{more}
port = words[words.index("--port") + 1]
os.chdir({root!r})
rest = ["--model", "served", "--itl-ms", "20", "--loading-s", "0.3"]
os.execv({python!r}, [{python!r}, "-m", "workers.simulated", "--port", port, *rest])
"""


class Worker:
    def __init__(self, folder: Path, *words: str, more: str = "") -> None:
        self.notes = folder / "notes"
        interpreter = folder / "python"
        interpreter.write_text(
            INTERPRETER.format(python=sys.executable, notes=str(self.notes), root=str(ROOT), more=more)
        )
        interpreter.chmod(interpreter.stat().st_mode | stat.S_IXUSR)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [
            sys.executable,
            "-m",
            "workers.vllm",
            "--model",
            "m",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
        ]
        self.popen = subprocess.Popen(
            [*command, "--python", str(interpreter), *words],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ready(self) -> str:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if "listening on" in line and "served" in line:
                return line
        raise AssertionError(self.popen.communicate()[1])

    def noted(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.notes.read_text())
        return found

    def end(self) -> tuple[int, str]:
        _, errors = self.popen.communicate(timeout=60)
        return self.popen.returncode, errors

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.popen.kill()
        self.popen.communicate()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path) as server:
        yield server


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_launches_registers_and_leaves(tmp_path: Path, redis: Server) -> None:
    with Worker(tmp_path, "--enable-auto-tool-choice", "--register", f"redis://{redis.address}") as worker:
        assert "vLLM 0.33.0" in worker.ready()
        words = worker.noted()["words"]
        assert words[2:4] == ["--model", "m"]
        assert "--enable-auto-tool-choice" in words
        assert words[-2:] == ["--logits-processors", PROCESSORS]
        assert "--register" not in words
        (name,) = redis.command("SMEMBERS", "{dragoman-workers}")
        record = json.loads(redis.command("GET", b"{dragoman-workers}:" + name))
        assert (record["models"], record["engine"], record["address"]) == (["served"], "vllm", worker.url)
        assert record["abilities"]["no_repeat_ngram"] is True
        worker.popen.send_signal(signal.SIGTERM)
        assert worker.end()[0] == 0
        assert redis.command("KEYS", "*") == []
        until(lambda: not alive(worker.noted()["pid"]))


def _stream(url: str, tokens: int, speaking: threading.Event, out: list[bytes]) -> None:
    body = {"model": "served", "messages": [{"role": "user", "content": "x"}], "max_tokens": tokens, "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json={**body, "ignore_eos": True}, timeout=60) as answer:
        try:
            for block in answer.iter_bytes():
                out.append(block)
                speaking.set()
        except httpx.HTTPError:
            out.append(b"<cut>")


@pytest.mark.long
@pytest.mark.parametrize(("grace", "tokens", "status"), [("30", 60, 0), ("0.5", 10000, 3)])
def test_running_requests_get_the_grace(tmp_path: Path, grace: str, tokens: int, status: int) -> None:
    with Worker(tmp_path, "--grace", grace) as worker:
        worker.ready()
        speaking, got = threading.Event(), list[bytes]()
        client = threading.Thread(target=_stream, args=(worker.url, tokens, speaking, got))
        client.start()
        assert speaking.wait(60)
        worker.popen.send_signal(signal.SIGTERM)
        assert worker.end()[0] == status
        client.join()
        assert (b"[DONE]" in b"".join(got)) is (status == 0)


@pytest.mark.long
def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with Worker(tmp_path, "--grace", "300") as worker:
        worker.ready()
        speaking = threading.Event()
        client = threading.Thread(target=_stream, args=(worker.url, 10000, speaking, []))
        client.start()
        assert speaking.wait(60)
        worker.popen.send_signal(signal.SIGTERM)
        assert worker.popen.stderr is not None
        assert any("draining" in line for line in worker.popen.stderr)
        worker.popen.send_signal(signal.SIGTERM)
        assert worker.end()[0] == 3
        client.join()


@pytest.mark.long
def test_an_engine_that_dies_takes_its_lease_along(tmp_path: Path, redis: Server) -> None:
    with Worker(tmp_path, "--register", f"redis://{redis.address}") as worker:
        worker.ready()
        os.kill(worker.noted()["pid"], signal.SIGKILL)
        status, errors = worker.end()
        assert status == 1
        assert "the engine was killed by SIGKILL" in errors
        assert redis.command("KEYS", "*") == []


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's word to a child whose parent died is Linux's")
def test_a_killed_worker_takes_its_engine_along(tmp_path: Path) -> None:
    with Worker(tmp_path) as worker:
        worker.ready()
        worker.popen.kill()
        until(lambda: not alive(worker.noted()["pid"]))


@pytest.mark.long
def test_an_engine_that_does_not_start(tmp_path: Path) -> None:
    with Worker(tmp_path, more="sys.exit(7)") as worker:
        status, errors = worker.end()
    assert status == 1
    assert "the engine ended with status 7" in errors


@pytest.mark.long
def test_an_interpreter_without_vllm(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "workers.vllm", "--model", "m"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        f"dragoman worker vllm: {sys.executable} has no vLLM: install it there (pip install vllm), "
        "or give --python another one\n"
    )


def test_the_environment_names_the_interpreter(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "workers.vllm", "--model", "m"]
    environment = {**os.environ, "ENGINE_PYTHON": str(tmp_path / "absent")}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (
        2,
        f"dragoman worker vllm: cannot run {tmp_path}/absent: No such file or directory\n",
    )


def test_the_engine_imports_what_it_needs_of_ours_without_our_dependencies() -> None:
    """Its interpreter has vLLM's packages. -S: no site-packages."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import workers.vllm.sequences"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_engine_that_never_gets_healthy(tmp_path: Path) -> None:
    with Worker(tmp_path, "--start-timeout", "0.5", more="import time; time.sleep(60)") as worker:
        status, errors = worker.end()
    assert status == 2
    assert "not healthy within 0.5 s" in errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--python", "absent"], "cannot run absent"),
        (["--register", "http://x"], "--register needs redis://"),
        (["--uds", "x"], "--uds"),
        (["--disable-log-stats"], "--disable-log-stats: without its load"),
        (["--disable_log_stats"], "--disable-log-stats: without its load"),
        (["--port", "many"], "many"),
    ],
)
def test_what_it_cannot_do_it_says(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "m", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


# -- what the engine reports

RUNNING, WAITING = (f'vllm:num_requests_{kind}{{engine="%d"}} %s\n' for kind in ("running", "waiting"))


class Reporting(Engine):
    def __init__(self, text: str) -> None:
        super().__init__([], python="", address="http://h:1")
        self._text = text.encode()

    async def _get(self, path: str) -> bytes:
        return self._text


async def test_its_load_is_that_of_all_ranks() -> None:
    text = RUNNING % (0, "3.0") + WAITING % (0, "0.0") + RUNNING % (1, "2.0") + WAITING % (1, "1.0")
    assert await Reporting(text).load() == (5, 1)


@pytest.mark.parametrize(
    "text", ["", RUNNING % (0, "0.0"), WAITING % (0, "0.0"), RUNNING % (0, "-") + WAITING % (0, 1)]
)
async def test_without_its_gauges_its_load_is_unknown(text: str) -> None:
    with pytest.raises(ValueError):
        await Reporting(text).load()


# -- what flags tell


def test_flags_are_read_as_vllm_reads_them() -> None:
    words = ["--port", "1", "--served_model_name=a", "--enforce-eager", "--port=2"]
    assert flag(words, "port") == "2"
    assert flag(words, "served-model-name") == "a"
    assert flag(words, "enforce-eager") == ""
    assert flag(words, "absent") is None


def test_abilities_follow_from_flags_and_from_the_models_own_files(tmp_path: Path) -> None:
    tools = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    assert abilities([], None) == {"tools": False, "reasoning": False} | dict.fromkeys(BEYOND, False)
    assert abilities(tools, None)["tools"]
    assert abilities(["--reasoning-parser", "qwen3"], None)["reasoning"]
    assert abilities(["--logits-processors", PROCESSORS], None)["bad_word_tokens"]
    assert not abilities(["--skip-tokenizer-init"], None)["regex"]
    (tmp_path / "config.json").write_text('{"vision_config": {}}')
    found = abilities([], str(tmp_path))
    assert (found["vision"], found["audio"]) == (True, False)
    assert telling([*tools, "--api-key", "secret", "--seed", "3"]) == ("enable-auto-tool-choice", "tool-call-parser")


@pytest.mark.parametrize(
    ("words", "architectures", "sure"),
    [
        ([], ["LlamaForCausalLM"], True),
        (["--runner", "generate"], [], True),
        (["--runner=auto"], ["GemmaForConditionalGeneration"], True),
        (["--runner", "pooling"], ["LlamaForCausalLM"], False),
        (["--task", "score"], ["LlamaForCausalLM"], False),
        (["--convert", "classify"], ["LlamaForCausalLM"], False),
        ([], ["BertForSequenceClassification"], False),
        ([], [], False),
        ([], "LlamaForCausalLM", False),
    ],
)
def test_a_model_that_generates_ranks_nothing(
    tmp_path: Path, words: list[str], architectures: object, sure: bool
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": architectures}))
    assert abilities(words, str(tmp_path)).get("scores") is (False if sure else None)
    (tmp_path / "modules.json").write_text("[]")
    by_flag = words == ["--runner", "generate"]
    assert abilities(words, str(tmp_path)).get("scores") is (False if by_flag else None), "a sentence transformer"


@pytest.mark.parametrize("words", [["--runner", "pooling"], ["--task", "embed"], ["--speculative-config", "{}"]])
def test_no_processor_where_vllm_takes_none(words: list[str]) -> None:
    assert takes_processors([])
    assert not takes_processors(words)


# -- which tokens may not follow


def test_an_ngram_of_prompt_and_output_comes_once() -> None:
    state = Forbidden(2, (), [1, 2, 3, 1])
    assert state.next([]) == {2}
    assert state.next([4]) == set()
    assert state.next([4, 1]) == {2, 4}
    assert state.next([4, 1, 3]) == {1}


def test_tokens_taken_back_are_forgotten() -> None:
    state = Forbidden(2, ())
    assert state.next([1, 2, 1]) == {2}
    assert state.next([1, 3, 1]) == {3}
    assert state.next([5, -1, -1]) == set()


def test_a_sequence_is_held_back_at_its_last_token() -> None:
    state = Forbidden(0, ((7, 8, 9), (5,), (3, 4)))
    assert state.next([]) == {5}
    assert state.next([7, 8]) == {5, 9}
    assert state.next([7, 8, 3]) == {5, 4}
    assert state.next([8]) == {5}


def test_what_a_request_asks_is_read() -> None:
    assert asked(None) == (0, ())
    assert asked({"no_repeat_ngram": 1}) == (0, ())
    assert asked({"no_repeat_ngram": 3, "bad_word_tokens": "1 2;;3 "}) == (3, ((1, 2), (3,)))


@pytest.mark.parametrize(
    "extra",
    [
        {"no_repeat_ngram": -1},
        {"no_repeat_ngram": "2"},
        {"no_repeat_ngram": True},
        {"bad_word_tokens": [1]},
        {"bad_word_tokens": "a"},
        {"bad_word_tokens": "-1"},
        {"bad_word_tokens": "1;" * 2000},
    ],
)
def test_what_makes_no_sense_is_refused(extra: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(extra))):
        asked(extra)
