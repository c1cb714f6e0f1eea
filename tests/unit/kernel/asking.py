"""Requests at a gateway whose worker follows a script, by either path to its clients."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx

from gateway.server import EXTENSION
from tests.support.harness import Stack

PATH = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def plain_asgi(app: Any) -> Any:
    """The application without the server's seam, as any other ASGI server would run it."""

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            scope = {**scope, "extensions": {}}
        await app(scope, receive, send)

    assert EXTENSION
    return wrapped


def chat(content: str = "hi", **members: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}], **members}


def scripted(**script: Any) -> str:
    """A user message by which the simulated worker says exactly this."""
    return "sim:" + json.dumps(script)


def raw_request(stack: Stack, body: dict[str, Any], path: str = PATH, fields: bytes = b"") -> socket.socket:
    """A request on a socket of its own, so that the test decides when and how the client leaves."""
    data = json.dumps(body).encode()
    port = int(stack.url.rsplit(":", 1)[1])
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(
        b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b"
        % (path.encode(), fields, len(data), data)
    )
    return client


def read_whole(client: socket.socket) -> bytes:
    """All bytes until the gateway ends the connection."""
    received = b""
    with client:
        client.settimeout(30)
        while block := client.recv(65536):
            received += block
    return received


def post(stack: Stack, body: dict[str, Any], **options: Any) -> httpx.Response:
    return httpx.post(stack.url + PATH, json=body, timeout=30, **options)
