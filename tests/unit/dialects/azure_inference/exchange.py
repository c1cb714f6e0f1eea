"""Requests of the dialect `azure_inference`, read or refused, and the specification's samples, for its tests."""

from __future__ import annotations

from functools import partial
from typing import Any

from gateway.core.http import Response
from gateway.core.messages import Chat
from gateway.core.ports import Dialect
from gateway.dialects.azure_inference import AzureInference
from gateway.dialects.azure_inference.fields import QUERY
from tests.unit.dialects import asking
from tests.unit.dialects.asking import HI

DIALECT = AzureInference()
PNG = "iVBORw0KGgoAAAANSUhEUg=="
request = partial(asking.request, query=QUERY)

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


def read(body: Any, *headers: tuple[bytes, bytes], dialect: Dialect = DIALECT) -> Chat:
    op = dialect.read(request(body, *headers))
    assert isinstance(op, Chat)
    return op


def chat(**members: Any) -> dict[str, Any]:
    return {"messages": HI, **members}


def refused(body: Any, *headers: tuple[bytes, bytes], query: bytes = QUERY, route: str = "chat") -> Response:
    return asking.refused(DIALECT, request(body, *headers, query=query, route=route))


def ms_code(response: Response) -> str:
    value = response.header(b"x-ms-error-code")
    assert value is not None
    return value.decode()
