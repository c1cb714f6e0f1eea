"""Requests of the openai dialect that are refused, and how long a refusal took."""

from __future__ import annotations

import time
from typing import Any

import httpx

CHAT = "/v1/chat/completions"


def body(**members: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], **members}


def _asked(request: httpx.Request) -> None:
    request.extensions["began"] = time.process_time()


def _answered(reply: httpx.Response) -> None:
    reply.extensions["cpu"] = time.process_time() - reply.request.extensions["began"]


MEASURED: dict[str, list[Any]] = {"request": [_asked], "response": [_answered]}
"""Hooks of a client whose replies tell the CPU time of this process, gateway and worker included, until each came."""


def in_time(reply: httpx.Response) -> None:
    assert reply.extensions["cpu"] < 1.0
