"""`python -m tests.chaos.flood '{"address": "HOST:PORT", "read": BOOL, "head": TEXT, "block": TEXT, "seconds": N}'`:

one connection that sends `head`, then `block` again and again, as fast as it is taken, and reads everything or nothing.
It connects anew when the connection ends. At its end it writes {"event": "flood", "sent": bytes, "read": bytes,
"connections": how many there were}.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from typing import Any

_AT_ONCE = 1 << 18


def flood(settings: dict[str, Any]) -> dict[str, Any]:
    host, _, port = settings["address"].rpartition(":")
    head, block = settings["head"].encode("latin-1"), settings["block"].encode("latin-1")
    block *= max(1, _AT_ONCE // max(1, len(block)))
    over = time.monotonic() + settings["seconds"]
    counts: dict[str, Any] = {"event": "flood", "sent": 0, "read": 0, "connections": 0}
    while time.monotonic() < over:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port))) as connection:
            counts["connections"] += 1
            reader = None
            if settings["read"]:
                reader = threading.Thread(target=drain, args=(connection, counts))
                reader.start()
            connection.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                connection.sendall(head)
            while time.monotonic() < over:
                if not block:
                    time.sleep(0.05)
                    if reader is not None and not reader.is_alive():
                        break
                    continue
                with contextlib.suppress(TimeoutError):
                    counts["sent"] += connection.send(block)
            connection.shutdown(socket.SHUT_RDWR)
            if reader is not None:
                reader.join()
    return counts


def drain(connection: socket.socket, counts: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        while True:
            try:
                got = len(connection.recv(1 << 20))
            except TimeoutError:
                continue
            if not got:
                return
            counts["read"] += got


if __name__ == "__main__":
    print(json.dumps(flood(json.loads(sys.argv[1]))), flush=True)
