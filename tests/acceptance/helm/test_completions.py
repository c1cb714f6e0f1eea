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

from gateway.dialects import REGISTRY
from tests.acceptance.helm.chart import CHART
from tests.support.clients import GENERATING
from tests.support.harness import Stack

SCRIPT = CHART / "files" / "completions.py"
DIALECTS = ",".join(REGISTRY)
ASKED = 2 * len(GENERATING)
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
    assert names == [f"{dialect}, {how}" for dialect in GENERATING for how in ("plain", "streamed")]
    assert lines[-1] == f"{ASKED} of {ASKED} completions were whole"


def test_without_a_key_it_fails_and_says_which_value_is_missing(stack: Stack) -> None:
    status, lines = ran(stack.url)
    assert status == 1
    assert [line for line in lines[:ASKED] if not re.match(r"FAILED .*: status 40[13]: ", line)] == []
    assert "test.existingSecret" in lines[-1]


def test_a_prefix_of_ones_own() -> None:
    with Stack(config={"dialects": {"azure_inference": {"prefixes": ["/foundry"]}}}) as stack:
        assert ran(stack.url, DIALECTS="azure_inference", PREFIXES='{"azure_inference": "/foundry"}')[0] == 0
        assert ran(stack.url, DIALECTS="azure_inference")[0] == 1


@pytest.mark.parametrize("fault", ["reset@3", "eof@3", "error-frame@3", "status:500"])
def test_a_failure_behind_the_gateway_is_a_failure(fault: str) -> None:
    with Stack(({"fault": fault},), config={"retry": {"wait_s": 0}}) as stack:
        status, lines = ran(stack.url, TIMEOUT_S="2")
    assert status == 1
    assert [line for line in lines[:ASKED] if line.startswith("ok")] == []


def test_a_gateway_that_cannot_be_reached(unused_tcp_port: int) -> None:
    status, lines = ran(f"http://127.0.0.1:{unused_tcp_port}", DIALECTS="openai", TIMEOUT_S="0.2")
    assert status == 1
    assert "cannot be reached" in lines[0]


def test_a_model_that_is_being_loaded_is_waited_for() -> None:
    with Stack(({"loading_s": 1.5},), config={"health": {"interval_s": 0.5, "timeout_s": 0.5}}) as stack:
        status, lines = ran(stack.url, TIMEOUT_S="20")
    assert status == 0, lines


def chunk(**choice: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


SAID = chunk(delta={"content": "red"}, finish_reason=None)
END = chunk(delta={}, finish_reason="stop")
DONE = b"data: [DONE]\n\n"
LINE = json.dumps({"message": {"content": "red"}, "done": False}).encode() + b"\n"
LAST = json.dumps({"message": {"content": ""}, "done": True}).encode() + b"\n"

TYPED = b'event: content_block_delta\ndata: {"type": "content_block_delta", "delta": {"text": "red"}}\n\n'
STOP = b'event: message_stop\ndata: {"type": "message_stop"}\n\n'


def test_whole_replies_are_read(script: ModuleType) -> None:
    assert script.events(SAID + END + DONE) == "red"
    assert script.lines(LINE + LAST) == "red"
    assert script.streamed(LINE + LAST) == "red"
    assert script.streamed(b": keep-alive\n\n" + TYPED + STOP) == "red"
    capped = (
        b'data: {"type": "response.output_text.delta", "delta": "red"}\n\ndata: {"type": "response.incomplete"}\n\n'
    )
    assert script.streamed(capped) == "red"
    assert script.plain(b'{"choices": [{"message": {"content": "red"}}]}') == "red"
    assert script.plain(b'{"message": {"content": "red"}, "done": true}') == "red"
    assert script.plain(b'{"choices": [{"message": {"content": null, "reasoning_content": "hm"}}]}') == "hm"
    assert script.plain(b'{"content": [{"type": "text", "text": "red"}], "stop_reason": "end_turn"}') == "red"


def test_items_are_read_and_no_error_is_none(script: ModuleType) -> None:
    parts = [{"type": "output_text", "text": "red"}]
    reply = {"object": "response", "error": None, "output": [{"type": "message", "content": parts}]}
    for status in ("completed", "incomplete"):
        assert script.plain(json.dumps({**reply, "status": status}).encode()) == "red"
    for wrong in ({**reply, "status": "failed"}, {**reply, "status": "completed", "error": {"code": "x"}}, reply):
        with pytest.raises(script.Wrong):
            script.plain(json.dumps(wrong).encode())


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
        ("plain", b"not JSON"),
        ("plain", b'{"choices": []}'),
        ("plain", b'{"choices": [{"message": null}]}'),
        ("plain", b'{"error": {"message": "x"}}'),
        ("plain", b'{"message": {"content": "red"}}'),
        ("plain", b'{"message": {"content": "red"}, "done": false}'),
        ("plain", b'{"content": [{"text": "red"}]}'),
        ("streamed", TYPED),
        ("streamed", STOP + TYPED),
        ("streamed", b""),
    ],
)
def test_a_reply_that_is_not_whole_is_wrong(script: ModuleType, reader: str, body: bytes) -> None:
    with pytest.raises(script.Wrong):
        getattr(script, reader)(body)
