"""A gateway with a worker that hears, speaks and draws."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import httpx

from gateway.config import Listen
from tests.support.harness import Stack
from tests.unit.app.media import TRANSCRIBE, TYPE, Worker

SPEECH, DRAW, EDIT = "/v1/audio/speech", "/v1/images/generations", "/v1/images/edits"
LARGE = bytes(range(256)) * 8192  # 2 MiB: in a file

VLLM = [
    {"object": "transcription.chunk", "model": "sim", "choices": [{"delta": {"content": "one"}}]},
    {
        "object": "transcription.chunk",
        "model": "sim",
        "choices": [{"delta": {"content": " two"}, "finish_reason": "stop"}],
    },
    {
        "object": "transcription.chunk",
        "model": "sim",
        "choices": [],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
    },
]


def events(*bodies: Any, done: bool = False) -> bytes:
    found = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in bodies)
    return found + (b"data: [DONE]\n\n" if done else b"")


def config(*workers: Worker, **model: Any) -> dict[str, Any]:
    listed = [one.url for one in workers]
    return {"models": {"m": {"backend": "vllm", "upstream_model": "sim", "workers": listed, **model}}}


def gateway(*workers: Worker, listen: Listen | None = None, more: Any = None, **model: Any) -> Stack:
    return Stack((), {**config(*workers, **model), **(more or {})}, listen=listen)


def send(stack: Stack, body: bytes, path: str = TRANSCRIBE, **headers: str) -> httpx.Response:
    return httpx.post(stack.url + path, content=body, headers={**TYPE, **headers}, timeout=30)


def told(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


ASKED = {"model": "m", "prompt": "a cat", "input": "hello"}


def files() -> list[str]:
    """Large files that this process holds open, without a name."""
    found = []
    for one in Path("/proc/self/fd").iterdir():
        try:
            where, size = os.readlink(one), one.stat().st_size
        except OSError:
            continue
        if where.endswith("(deleted)") and size >= len(LARGE) // 2:
            found.append(where)
    return found
