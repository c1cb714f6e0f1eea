"""Requests of this dialect at a gateway, and the events of their replies."""

from __future__ import annotations

from typing import Any

import httpx


def post(client: httpx.Client, asked: dict[str, Any], path: str = "/v1/messages") -> Any:
    reply = client.post(path, json=asked)
    assert reply.status_code == 200, reply.text
    return reply.json()
