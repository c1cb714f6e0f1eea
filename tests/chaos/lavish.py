"""`python -m tests.chaos.lavish PORT`: a worker whose replies are large, fast, and in small pieces if asked.

What it sends is a mode in the request: "megabyte", a plain reply of 1 MB; "frames", a stream of ordinary frames;
"bytes", the same in chunks of one byte; "tiny", frames that are as small as they can be; "comments", a stream of
nothing else. Streams end after SECONDS.
"""

from __future__ import annotations

import asyncio
import sys
import time

import uvloop

from tests.chaos.odd import CHUNKED, chunked, counted, plain, word

MODES = ("megabyte", "frames", "bytes", "tiny", "comments")
SECONDS = 30.0


BLOCKS = {
    "frames": chunked(word("word ") * 500),
    "bytes": chunked(word("word ") * 50, 1),
    "tiny": chunked(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n' * 1000),
    "comments": chunked(b":\n\n" * 20_000),
}


PLAIN = counted(plain("x" * 1_000_000))


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            _, _, rest = head.partition(b"content-length: ")
            body = await reader.readexactly(int(rest.split(b"\r\n")[0])) if rest else b""
            mode = next((mode for mode in MODES if mode.encode() in body), None)
            if mode is None:
                writer.write(counted(b""))
            elif mode == "megabyte":
                writer.write(PLAIN)
            else:
                writer.write(CHUNKED + chunked(word("first")))
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
