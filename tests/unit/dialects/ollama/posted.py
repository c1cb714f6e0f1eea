"""Requests of this dialect at a gateway, and the lines of their replies."""

from __future__ import annotations

from typing import Any

import httpx

from tests.unit.dialects.ollama.asking import lines

PROMPT_METRICS = {"total_duration", "load_duration", "prompt_eval_count"}
METRICS = {*PROMPT_METRICS, "prompt_eval_duration", "eval_count", "eval_duration"}


def whole(client: httpx.Client, path: str, asked: dict[str, Any]) -> Any:
    reply = client.post(path, json={"stream": False, **asked})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("application/json")
    return reply.json()


def streamed(client: httpx.Client, path: str, asked: dict[str, Any]) -> list[dict[str, Any]]:
    reply = client.post(path, json=asked)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "application/x-ndjson"
    return lines(reply.text)


def refused(client: httpx.Client, path: str, asked: Any, status: int = 400) -> str:
    reply = client.post(path, json=asked)
    assert reply.status_code == status, reply.text
    text = reply.json()["error"]
    assert isinstance(text, str)
    return text
