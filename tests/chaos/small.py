"""`python -m tests.chaos.small '{"address": "HOST:PORT", "key", "streams", "tokens", "pause_s"}'`: clients of small
streams, in a process of their own so that nothing else delays them.

Each asks for a stream of so many tokens of model "m", and again `pause_s` after its end, until SIGTERM. For each that
is over it writes {"event": "small", "status", "at": when it was asked for, "blocks": when each block of its reply came}
by the monotonic clock, in seconds; the last of them is its end.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from typing import Any

import uvloop

from tests.chaos.house import CHAT, chat
from tests.chaos.link import connected, request
from tests.chaos.odd import until_ended


async def stream(settings: dict[str, Any], delay: float) -> None:
    await asyncio.sleep(delay)
    reader, writer = await connected(settings["address"])
    asked = request("POST", CHAT, {"api-key": settings["key"]}, json.dumps(chat(settings["tokens"], True)).encode())
    while True:
        at, blocks, data = time.monotonic(), [], b""
        writer.write(asked)
        while not data.endswith(b"0\r\n\r\n") and (block := await reader.read(65536)):
            blocks.append(time.monotonic())
            data += block
            if not data.startswith(b"HTTP/1.1 200 "):
                break
        line = {"event": "small", "status": int(data[9:12] or b"0"), "at": at, "blocks": blocks}
        sys.stdout.write(json.dumps(line) + "\n")
        if line["status"] != 200:
            writer.close()
            reader, writer = await connected(settings["address"])
        await asyncio.sleep(settings["pause_s"])


async def main(settings: dict[str, Any]) -> None:
    count = settings["streams"]
    clients = [asyncio.ensure_future(stream(settings, number / count * 0.5)) for number in range(count)]
    await until_ended()
    for one in clients:
        one.cancel()
    await asyncio.gather(*clients, return_exceptions=True)


if __name__ == "__main__":
    gc.freeze()
    gc.disable()  # a pause of this process would be taken for one of the gateway's
    uvloop.run(main(json.loads(sys.argv[1])))
