"""Conversations outlive their engine: of two real ones, one hangs, then one is killed, in the middle of many streams.

Greedy, so that the joined text must be the one of an undisturbed engine. Numbers of 32 bits: with fewer, a token that
is computed as part of a prompt may differ from the same token computed one by one. A text that the engine's tokenizer
would cut otherwise than the model did is left out: the rest of it may rightly be another one.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import httpx
import pytest

from gateway.dialects import REGISTRY
from tests.acceptance.engine.ask import SEED, WAYS, Way
from tests.acceptance.engine.conftest import ROOT, Engine
from tests.support.harness import Stack, until
from tests.support.ports import free_port

pytestmark = pytest.mark.engine

NAME = "pair"
TOKENS = 24
PROMPTS = 10
_MIDWAY = 5
"""Streams with a first token at an engine when it stops; llama-server computes 16 at once."""
STALLED_S = 30
"""Seconds without progress that prove a stall: a step of many sequences on a busy machine takes some."""
TOPICS = (
    *("a cat", "the sea", "rain", "bread", "the moon", "a bridge", "music", "winter", "a garden", "the sun", "a train"),
    *(
        "chess",
        "a river",
        "books",
        "the wind",
        "a mountain",
        "coffee",
        "a bicycle",
        "stars",
        "a forest",
        "glass",
        "snow",
    ),
    *("a clock", "horses", "paper", "a lighthouse", "salt", "an island", "maps", "a violin"),
)
CHATS = {way.way.dialect: way for way in WAYS.values() if way.kind == "chat" and way.can(True)}
DIALECTS = random.Random(f"{SEED} continued").sample(sorted(CHATS), 4)
"""Another SEED draws others."""


class Running(Protocol):
    """One engine. hang: it computes no more, until `wake`."""

    url: str

    def hang(self) -> None: ...
    def wake(self) -> None: ...
    def kill(self) -> None: ...
    def count(self, text: str) -> int: ...


class VllmEngine:
    """vLLM. Its web server answers while its core hangs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.url = engine.url
        self._stopped: list[int] = []

    def _core(self) -> list[int]:
        names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in self._engine.processes()}
        return [pid for pid, name in names.items() if name.startswith(b"VLLM::")]

    def hang(self) -> None:
        self._stopped = self._core()
        assert self._stopped
        for pid in self._stopped:
            os.kill(pid, signal.SIGSTOP)

    def wake(self) -> None:
        for pid in self._stopped:
            os.kill(pid, signal.SIGCONT)

    def kill(self) -> None:
        for pid in [self._engine.popen.pid, *self._engine.processes()]:
            os.kill(pid, signal.SIGKILL)

    def count(self, text: str) -> int:
        body = {"model": NAME, "prompt": text, "add_special_tokens": False}
        return int(httpx.post(self.url + "/tokenize", json=body, timeout=60).json()["count"])


class LlamaEngine:
    """llama.cpp in one process: all of it hangs."""

    def __init__(self) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        words = [sys.executable, "-m", "gateway.cli", "worker", "embedded", "--port", str(port), "--name", NAME]
        words += ["--parallel", "16", "--context", "512"]
        self.popen = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    def ready(self) -> None:
        assert self.popen.stdout is not None
        assert any("listening" in line for line in iter(self.popen.stdout.readline, ""))

    def hang(self) -> None:
        self.popen.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        self.popen.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()
        assert self.popen.stdout is not None
        self.popen.stdout.close()

    def count(self, text: str) -> int:
        return len(httpx.post(self.url + "/tokenize", json={"content": text}, timeout=60).json()["tokens"])


@pytest.fixture(scope="module", params=["vllm", "llamacpp"])
def pair(request: pytest.FixtureRequest, start: Callable[..., Engine]) -> Iterator[tuple[str, list[Running]]]:
    if request.param == "vllm":
        started = [start("--served-model-name", NAME, "--dtype", "float32") for _ in range(2)]
        for engine in started:
            engine.ready()
        yield "vllm", [VllmEngine(engine) for engine in started]
        for engine in started:
            engine.stop()
        return
    llamas = [LlamaEngine() for _ in range(2)]
    try:
        for llama in llamas:
            llama.ready()
        yield "llamacpp", list(llamas)
    finally:
        for llama in llamas:
            llama.wake()
            llama.kill()


class Streams:
    """One stream for each dialect and prompt, all at once, through the gateway. texts: by (dialect, prompt)."""

    def __init__(self, url: str, prompts: list[str]) -> None:
        self.texts: dict[tuple[str, str], str] = {}
        self._url = url
        self._pool = ThreadPoolExecutor(len(prompts) * len(DIALECTS))
        self._asked = [self._pool.submit(self._ask, CHATS[name], prompt) for prompt in prompts for name in DIALECTS]

    def _ask(self, way: Way, prompt: str) -> None:
        body = way.body(True, prompt, model=NAME, max_tokens=TOKENS, temperature=0)
        content = b""
        with httpx.stream("POST", self._url + way.path, json=body, timeout=300) as response:
            assert response.status_code == 200, response.read()
            with contextlib.suppress(httpx.RemoteProtocolError):  # the reply shows that it was cut
                for piece in response.iter_raw():
                    content += piece
        heard = way.client.hear(content)
        self.texts[way.way.dialect, prompt] = heard.choices[0].text if heard.complete else f"cut: {heard.error}"

    def until_midway(self, stack: Stack, engine: Running) -> None:
        """Returns when so many streams are between their first token and their last at this engine that some are still
        there when it stops. Raises what a client raised."""
        requests = stack.gateway.deployment.runtime.active.requests
        while not all(one.done() for one in self._asked):
            found = [one for one in list(requests) if one.reply.committed and one.record.worker == engine.url]
            if len(found) >= _MIDWAY:
                return
            time.sleep(0.01)
        self.end()
        pytest.fail(f"never {_MIDWAY} streams at {engine.url}")

    def end(self) -> dict[tuple[str, str], str]:
        for one in self._asked:
            one.result()
        self._pool.shutdown()
        return self.texts


@pytest.mark.whole  # it starts two engines of its own, twice
def test_streams_outlive_their_engine(pair: tuple[str, list[Running]]) -> None:
    backend, engines = pair
    config = {
        "models": {NAME: {"backend": backend, "workers": [engine.url for engine in engines], "upstream_model": NAME}},
        "dialects": {name: {"default_model": NAME} for name in REGISTRY},
        "health": {"interval_s": 5, "timeout_s": 5, "stalled_s": STALLED_S},
        "queue": {"timeout_s": 120},
        "breaker": {"slowstart_s": 0},
    }
    with Stack(workers=(), config=config) as stack:
        until(lambda: stack.gateway.deployment.fleets.ready, 60)
        prompts, alone = undisturbed(engines[0])
        expected = {(dialect, prompt): alone[prompt] for dialect in DIALECTS for prompt in prompts}

        hanging = Streams(stack.url, prompts)
        hanging.until_midway(stack, engines[1])
        engines[1].hang()
        try:
            texts = hanging.end()
        finally:
            engines[1].wake()
        hung = continued(stack, 0)
        assert texts == expected
        until(lambda: returned(stack, prompts[0]), 120)

        asked = len(stack.records())
        dying = Streams(stack.url, prompts)
        dying.until_midway(stack, engines[0])
        engines[0].kill()
        texts = dying.end()
        killed = continued(stack, asked)
        assert texts == expected
    print(f"{backend}: {len(expected)} streams; continued: {hung} behind a hung engine, {killed} behind a killed one")
    assert hung
    assert killed


def undisturbed(engine: Running) -> tuple[list[str], dict[str, str]]:
    """(prompts, the whole reply to each), straight from one engine."""
    found: dict[str, str] = {}
    for topic in TOPICS:
        prompt = f"Tell me a few plain facts about {topic}."
        messages = [{"role": "user", "content": prompt}]
        body = {"model": NAME, "messages": messages, "max_tokens": TOKENS, "temperature": 0}
        reply = httpx.post(engine.url + "/v1/chat/completions", json=body, timeout=120).json()
        text, made = reply["choices"][0]["message"]["content"], reply["usage"]["completion_tokens"]
        if engine.count(text) == made - (reply["choices"][0]["finish_reason"] == "stop"):
            found[prompt] = text
        if len(found) == PROMPTS:
            return list(found), found
    pytest.fail(f"{len(found)} of {len(TOPICS)} replies are cut into tokens as the tokenizer cuts them")


def returned(stack: Stack, prompt: str) -> bool:
    """Whether both engines take requests again. A request is the trial of an engine that hung. There is none before
    that: on few cores the other engine's work would keep the woken one from its first token."""
    workers = stack.gateway.deployment.fleets.models[NAME].pool.workers
    states = [(worker.serving, worker.breaker.state(time.monotonic()), worker.progress.stalled) for worker in workers]
    if (True, "half_open", False) in states:
        way = CHATS[DIALECTS[0]]
        httpx.post(stack.url + way.path, json=way.body(True, prompt, model=NAME, max_tokens=1), timeout=60)
    return states == [(True, "closed", False)] * 2


def continued(stack: Stack, before: int) -> int:
    """How many of the records after the first `before` are of continued streams. All others were not cut."""
    records = stack.records()[before:]
    assert {record["not_continued"] for record in records if record.get("not_continued")} == set()
    return sum(bool(record.get("continued")) for record in records)
