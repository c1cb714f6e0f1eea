"""Requests of this dialect at a gateway, and the events of their replies."""

from __future__ import annotations

from typing import Any

import httpx

from tests.unit.dialects.responses.asking import frames, scripted


def post(client: httpx.Client, asked: dict[str, Any], path: str = "/v1/responses") -> Any:
    reply = client.post(path, json=asked)
    assert reply.status_code == 200, reply.text
    return reply.json()


def streamed(client: httpx.Client, also: dict[str, Any] | None = None, **script: Any) -> list[dict[str, Any]]:
    reply = client.post("/v1/responses", json=scripted(stream=True, also=also, **script))
    assert reply.headers["content-type"].startswith("text/event-stream"), reply.text
    return frames(reply.text)


THOUGHT: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": [], "content": None}
