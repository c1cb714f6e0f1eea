"""A client that says what it likes, and what the tests of the server share."""

from __future__ import annotations

import json
import socket
from typing import Any, Self

from gateway.config import Listen
from tests.support.harness import Stack

QUICK = Listen(
    header_timeout_s=0.3,
    body_timeout_s=0.3,
    write_idle_s=0.5,
    max_body_bytes=200_000,
    max_connections=20,
)
PATIENT = QUICK.model_copy(update={"header_timeout_s": 30.0, "body_timeout_s": 30.0, "write_idle_s": 30.0})
LIMITED = {"listen": {"max_body_bytes": 200_000}}
MODELS = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
GONE = {"backend": "vllm", "workers": ["http://127.0.0.1:9"]}
LINE = b"GET /v1/models HTTP/1.1\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"
BODY = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"


class Raw:
    """A client that says what it likes."""

    def __init__(self, stack: Stack) -> None:
        self.socket = socket.create_connection(("127.0.0.1", int(stack.url.rsplit(":", 1)[1])))
        self.socket.settimeout(60)
        self.left = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> Self:
        self.socket.sendall(data)
        return self

    def more(self) -> bool:
        try:
            block = self.socket.recv(1 << 20)
        except ConnectionResetError:
            return False
        self.left += block
        return bool(block)

    def head(self) -> bytes:
        """The next response's head, and whatever has come behind it."""
        while b"\r\n\r\n" not in self.left:
            assert self.more(), self.left
        return self.left

    def response(self) -> tuple[int, dict[bytes, bytes], bytes]:
        """The next whole response that has a content-length."""
        while b"\r\n\r\n" not in self.left:
            assert self.more(), self.left
        head, _, rest = self.left.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])}
        size = int(headers[b"content-length"])
        while len(rest) < size:
            assert self.more(), "the connection ended inside of a body"
            rest = self.left.partition(b"\r\n\r\n")[2]
        self.left = rest[size:]
        return int(lines[0].split()[1]), headers, rest[:size]

    def rest(self) -> bytes:
        """Everything until the connection ends."""
        while self.more():
            pass
        return self.left


def ask(stack: Stack, data: bytes) -> tuple[int, bytes]:
    """Status (0 if there was none) and body of the only answer to `data`, after which the gateway ends."""
    with Raw(stack) as client:
        received = client.send(data).rest()
    head, _, body = received.partition(b"\r\n\r\n")
    return (int(head.split()[1]) if head else 0), body


def code_of(body: bytes) -> str:
    error = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error["code"], str)
    return error["code"]


def post(content: Any, *headers: bytes, path: bytes = b"/v1/chat/completions") -> bytes:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return b"POST %b HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n%b" % (
        path,
        b"".join(header + b"\r\n" for header in headers),
        len(body),
        body,
    )


def chat(text: str = "hi", **members: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **members}


def scripted(**script: Any) -> str:
    return "sim:" + json.dumps(script)


def connections(stack: Stack) -> list[Any]:
    return list(stack.server.server_state.connections)


def only_connection(stack: Stack) -> Any:
    (protocol,) = connections(stack)
    return protocol


def chunked(content: bytes, size: int, trailer: bytes = b"") -> bytes:
    """A chat whose body comes in chunks of `size` bytes."""
    pieces = [content[at : at + size] for at in range(0, len(content), size)]
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + CHUNKED + b"\r\n%b0\r\n%b\r\n" % (body, trailer)
