"""Requests of this dialect, read."""

from __future__ import annotations

import json
from typing import Any

from gateway import dialects
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Request
from gateway.core.messages import Chat
from gateway.core.ports import Settings
from tests.support.raised import raised

GEMINI = dialects.create("gemini", Settings())
HI = [{"role": "user", "parts": [{"text": "hi"}]}]
TOOLS = [{"functionDeclarations": [{"name": "f", "parameters": {"type": "OBJECT"}}, {"name": "g"}]}]


def asking(body: dict[str, Any], route: str = "generate", query: bytes = b"", **params: str) -> Request:
    return Request("POST", "/x", [], json.dumps(body).encode(), query, route, {"model": "m", **params}, "r")


def chat(**members: Any) -> Chat:
    op = GEMINI.read(asking({"contents": HI, **members}))
    assert isinstance(op, Chat)
    return op


def model(*parts: Any) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def refused(**members: Any) -> GatewayError:
    error = raised(GEMINI.read, asking({"contents": HI, **members}))
    assert error.kind in (Kind.BAD_REQUEST, Kind.UNSUPPORTED)
    return error
