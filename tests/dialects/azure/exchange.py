"""What the tests of the dialect `azure` share: its requests, read or refused, and the specification's samples."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.backends.vllm import Vllm
from gateway.core.errors import GatewayError
from gateway.core.http import Headers, Request, Response
from gateway.core.messages import Chat, Embed
from gateway.core.ports import Capabilities, Dialect
from gateway.dialects.azure import Azure

QUERY = b"api-version=2024-05-01-preview"
DIALECT = Azure()
HI = [{"role": "user", "content": "hi"}]
PNG = "iVBORw0KGgoAAAANSUhEUg=="

SAMPLE_REQUEST: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "You are a helpful assistant"},
        {"role": "user", "content": "Explain Riemann's conjecture"},
        {"role": "assistant", "content": "The Riemann Conjecture is a deep mathematical conjecture ..."},
        {"role": "user", "content": "Ist it proved?"},
    ],
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "max_tokens": 256,
    "seed": 42,
    "stop": "<|endoftext|>",
    "stream": False,
    "temperature": 0,
    "top_p": 1,
    "response_format": {"type": "text"},
}
SAMPLE_REPLY: dict[str, Any] = {
    "id": "1234567890",
    "model": "llama2-70b-chat",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "No, it has never been proved"},
        }
    ],
    "created": 1234567890,
    "object": "chat.completion",
    "usage": {"prompt_tokens": 205, "completion_tokens": 5, "total_tokens": 210},
}


def request(
    body: Any = None, *headers: tuple[bytes, bytes], query: bytes = QUERY, route: str = "chat", method: str = "POST"
) -> Request:
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    found: Headers = [(b"content-type", b"application/json"), *headers]
    return Request(method, "/chat/completions", found, raw, query, route)


def read(body: Any, *headers: tuple[bytes, bytes], dialect: Dialect = DIALECT) -> Chat:
    op = dialect.read(request(body, *headers))
    assert isinstance(op, Chat)
    return op


def chat(**members: Any) -> dict[str, Any]:
    return {"messages": HI, **members}


def to_worker(op: Chat | Embed) -> Any:
    return json.loads(Vllm().write(op, Capabilities("w")).body)


def refused(body: Any, *headers: tuple[bytes, bytes], query: bytes = QUERY, route: str = "chat") -> Response:
    """The response to a request that the dialect itself refuses."""
    asked = request(body, *headers, query=query, route=route)
    with pytest.raises(GatewayError) as caught:
        DIALECT.read(asked)
    return DIALECT.refuse(caught.value, asked, None)[0]


def ms_code(response: Response) -> str:
    value = response.header(b"x-ms-error-code")
    assert value is not None
    return value.decode()
