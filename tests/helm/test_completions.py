"""The script of `helm test`: it passes where every dialect answers whole, and sees every way in which one does not."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from types import ModuleType
from typing import Any

import pytest

from tests.harness import Stack
from tests.helm.chart import CHART

SCRIPT = CHART / "files" / "completions.py"
DIALECTS = "openai,sagemaker,azure,ollama,friendli"
KEY = "made-elsewhere-0123456789"
KEYS = {"auth": "keys", "keys": {"test": {"hash": "sha256:" + sha256(KEY.encode()).hexdigest()}}}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("completions", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(config=KEYS) as one:
        yield one


def ran(url: str, **environment: str) -> tuple[int, list[str]]:
    """The script as the Pod runs it: (exit status, its lines)."""
    given = {"GATEWAY": url, "MODEL": "m", "DIALECTS": DIALECTS, "TIMEOUT_S": "5", **environment}
    # Python's own library alone: nothing that is installed, nothing of this repository.
    done = subprocess.run(
        [sys.executable, "-I", "-S", SCRIPT],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], **given},
        timeout=60,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_every_dialect_answers_streamed_and_not(stack: Stack) -> None:
    status, lines = ran(stack.url, KEY=KEY)
    assert status == 0, lines
    names = [line.split(":")[0].split(maxsplit=1)[1] for line in lines[:-1]]
    assert names == [f"{dialect}, {how}" for dialect in DIALECTS.split(",") for how in ("plain", "streamed")]
    assert lines[-1] == "10 of 10 completions were whole"


def test_without_a_key_it_fails_and_says_which_value_is_missing(stack: Stack) -> None:
    status, lines = ran(stack.url)
    assert status == 1
    assert [line for line in lines[:10] if not re.match(r"FAILED .*: status 40[13]: ", line)] == []
    assert "test.existingSecret" in lines[-1]


def test_a_prefix_of_ones_own() -> None:
    with Stack(config={"dialects": {"azure": {"prefixes": ["/foundry"]}}}) as stack:
        assert ran(stack.url, DIALECTS="azure", PREFIXES='{"azure": "/foundry"}')[0] == 0
        assert ran(stack.url, DIALECTS="azure")[0] == 1


@pytest.mark.parametrize("fault", ["reset@3", "eof@3", "error-frame@3", "status:500"])
def test_a_failure_behind_the_gateway_is_a_failure(fault: str) -> None:
    with Stack(({"fault": fault},)) as stack:
        status, lines = ran(stack.url, TIMEOUT_S="2")
    assert status == 1
    assert [line for line in lines[:10] if line.startswith("ok")] == []


def test_a_gateway_that_cannot_be_reached(unused_tcp_port: int) -> None:
    status, lines = ran(f"http://127.0.0.1:{unused_tcp_port}", DIALECTS="openai", TIMEOUT_S="0.2")
    assert status == 1
    assert "cannot be reached" in lines[0]


def test_a_model_that_is_being_loaded_is_waited_for() -> None:
    with Stack(({"loading_s": 1.5},), config={"health": {"interval_s": 0.2, "timeout_s": 0.1}}) as stack:
        status, lines = ran(stack.url, TIMEOUT_S="20")
    assert status == 0, lines


def chunk(**choice: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


SAID = chunk(delta={"content": "red"}, finish_reason=None)
END = chunk(delta={}, finish_reason="stop")
DONE = b"data: [DONE]\n\n"
LINE = json.dumps({"message": {"content": "red"}, "done": False}).encode() + b"\n"
LAST = json.dumps({"message": {"content": ""}, "done": True}).encode() + b"\n"


def test_whole_replies_are_read(script: ModuleType) -> None:
    assert script.events(SAID + END + DONE) == "red"
    assert script.lines(LINE + LAST) == "red"
    assert script.choice(b'{"choices": [{"message": {"content": "red"}}]}') == "red"
    assert script.message(b'{"message": {"content": "red"}, "done": true}') == "red"
    assert script.choice(b'{"choices": [{"message": {"content": null, "reasoning_content": "hm"}}]}') == "hm"


@pytest.mark.parametrize(
    ("reader", "body"),
    [
        ("events", b""),
        ("events", SAID + END),
        ("events", SAID + DONE),
        ("events", SAID + END + DONE + SAID),
        ("events", SAID + b'data: {"error": {"message": "x"}}\n\n' + DONE),
        ("events", b"data: {}\n\n" + DONE),
        ("lines", b""),
        ("lines", LINE),
        ("lines", LAST + LAST),
        ("lines", LINE + b'{"error": {"message": "x"}, "done": true}\n'),
        ("choice", b"not JSON"),
        ("choice", b'{"choices": []}'),
        ("choice", b'{"choices": [{"message": null}]}'),
        ("choice", b'{"error": {"message": "x"}}'),
        ("message", b'{"message": {"content": "red"}}'),
    ],
)
def test_a_reply_that_is_not_whole_is_wrong(script: ModuleType, reader: str, body: bytes) -> None:
    with pytest.raises(script.Wrong):
        getattr(script, reader)(body)
