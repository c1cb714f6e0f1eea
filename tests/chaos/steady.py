"""`python -m tests.chaos.steady '{"address": "HOST:PORT", "key", "clients", "pause_s"}'`: clients of short replies.

They ask for model "m", each `pause_s` after its last reply, in a process of their own so that nothing else delays them.

Until SIGTERM. For each reply it writes {"event": "steady", "status", "at": when it was asked for, "ms": until its end},
by the monotonic clock.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from typing import Any

import uvloop

from tests.chaos.house import CHAT, chat
from tests.chaos.link import Link
from tests.chaos.odd import until_ended


async def client(settings: dict[str, Any], delay: float) -> None:
    await asyncio.sleep(delay)
    link = Link(settings["address"])
    while True:
        try:
            answer = await link.post(CHAT, chat(2), {"api-key": settings["key"]})
            line = {"event": "steady", "status": answer.status, "at": answer.began, "ms": answer.seconds * 1000}
        except (OSError, asyncio.IncompleteReadError):
            line = {"event": "steady", "status": 0, "at": 0.0, "ms": 0.0}
        sys.stdout.write(json.dumps(line) + "\n")
        await asyncio.sleep(settings["pause_s"])


async def main(settings: dict[str, Any]) -> None:
    count = settings["clients"]
    clients = [asyncio.ensure_future(client(settings, number / count * settings["pause_s"])) for number in range(count)]
    await until_ended()
    for one in clients:
        one.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    sys.stdout.flush()


if __name__ == "__main__":
    gc.freeze()
    gc.disable()  # a pause of this process would be taken for one of the gateway's
    uvloop.run(main(json.loads(sys.argv[1])))
