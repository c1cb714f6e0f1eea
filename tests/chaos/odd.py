"""The parts of odd workers: what they answer in vLLM's wire, as bytes, and how their processes run."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from typing import Any

_CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "sim"}
DONE = b"data: [DONE]\n\n"


def frame(said: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(said).encode() + b"\n\n"


def word(text: str) -> bytes:
    return frame({**_CHUNK, "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})


END = frame({**_CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})


def plain(content: str = "ok", **members: Any) -> bytes:
    """A reply that is good as a chat's and as a text completion's."""
    message = {"role": "assistant", "content": content}
    choices = [{"index": 0, "message": message, "text": content, "finish_reason": "stop"}]
    usage = {"prompt_tokens": 1, "completion_tokens": 7, "total_tokens": 8}
    said = {"id": "c", "object": "chat.completion", "created": 1, "model": "sim", "choices": choices, "usage": usage}
    return json.dumps({**said, **members}).encode()


def head(*lines: str, status: str = "200 OK", kind: str = "application/json") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", f"content-type: {kind}", *lines, "", ""]).encode("latin-1")


def counted(body: bytes, *lines: str, status: str = "200 OK", kind: str = "application/json") -> bytes:
    return head(*lines, f"content-length: {len(body)}", status=status, kind=kind) + body


CHUNKED = head("transfer-encoding: chunked", kind="text/event-stream")


def chunked(data: bytes, size: int = 1 << 16) -> bytes:
    """`data` in chunks of `size` bytes, without the last one."""
    pieces = (data[at : at + size] for at in range(0, len(data), size))
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


async def until_ended() -> None:
    """Returns at SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()


async def serve(port: int, worker: Callable[[], asyncio.Protocol]) -> None:
    """Until SIGTERM."""
    await asyncio.get_running_loop().create_server(worker, "127.0.0.1", port, backlog=4096)
    await until_ended()
