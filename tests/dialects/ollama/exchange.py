"""What the tests of the dialect `ollama` share: its requests, read or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.backends.vllm import Vllm
from gateway.core.errors import GatewayError
from gateway.core.http import Request
from gateway.core.messages import Chat
from gateway.core.ports import Capabilities, Dialect
from gateway.dialects.ollama import Ollama

DIALECT = Ollama()
HI = [{"role": "user", "content": "hi"}]
PNG = "iVBORw0KGgoAAAANSUhEUg=="


def request(body: Any, route: str = "chat") -> Request:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Request("POST", "/chat/completions", [(b"content-type", b"application/json")], raw, b"", route)


def read(body: Any, route: str = "chat", dialect: Dialect = DIALECT) -> Chat:
    op = dialect.read(request(body, route))
    assert isinstance(op, Chat)
    return op


def chat(**members: Any) -> dict[str, Any]:
    return {"model": "m", "messages": HI, **members}


def to_worker(op: Chat) -> Any:
    return json.loads(Vllm().write(op, Capabilities("w")).body)


def refused(body: Any, route: str = "chat", dialect: Dialect = DIALECT) -> tuple[int, Any]:
    """Status and error object of a request that the dialect itself refuses."""
    asked = request(body, route)
    with pytest.raises(GatewayError) as caught:
        dialect.read(asked)
    response = dialect.refuse(caught.value, asked, None)[0]
    found = json.loads(response.body)
    assert list(found) == ["error"]
    assert list(found["error"]) == ["message", "type", "code"]
    return response.status, found["error"]
