"""`python -m tests.chaos.lavish PORT`: a worker whose replies are large, fast, and in small pieces if asked.

What it sends is a mode in the request: "megabyte", a plain reply of 1 MB; "frames", a stream of ordinary frames;
"bytes", the same in chunks of one byte; "tiny", frames that are as small as they can be; "comments", a stream of
nothing else. Streams end after SECONDS.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import uvloop

MODES = ("megabyte", "frames", "bytes", "tiny", "comments")
SECONDS = 30.0


def frame(text: str) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    chunk = {"id": "t", "object": "chat.completion.chunk", "created": 1, "model": "sim", "choices": [choice]}
    return b"data: %b\n\n" % json.dumps(chunk, separators=(",", ":")).encode()


def chunked(data: bytes, size: int) -> bytes:
    return b"".join(
        b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (data[at : at + size] for at in range(0, len(data), size))
    )


BLOCKS = {
    "frames": chunked(frame("word ") * 500, 1 << 16),
    "bytes": chunked(frame("word ") * 50, 1),
    "tiny": chunked(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n' * 1000, 1 << 16),
    "comments": chunked(b":\n\n" * 20_000, 1 << 16),
}


def plain() -> bytes:
    message = {"role": "assistant", "content": "x" * 1_000_000}
    reply = {
        "id": "t",
        "object": "chat.completion",
        "created": 1,
        "model": "sim",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
    body = json.dumps(reply).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


PLAIN = plain()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            _, _, rest = head.partition(b"content-length: ")
            body = await reader.readexactly(int(rest.split(b"\r\n")[0])) if rest else b""
            mode = next((mode for mode in MODES if mode.encode() in body), None)
            if mode is None:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            elif mode == "megabyte":
                writer.write(PLAIN)
            else:
                head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                writer.write(head + chunked(frame("first"), 1 << 16))
                over = time.monotonic() + SECONDS
                while time.monotonic() < over:
                    writer.write(BLOCKS[mode])
                    await writer.drain()
            await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def main(port: int) -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
