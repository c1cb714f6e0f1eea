"""Control endpoints, for tests and trials. Bodies are JSON.

GET  /sim/ledger?since=N   every request after number N: headers, body, how and when it ended; and the counters
GET  /sim/counters         running, waiting, received, completed, aborted, failed, connections
GET  /sim/wait?running=0&aborted=3&timeout=5   answers when levels (running, waiting, connections) are equal and counts
                           are reached; "met" is false if the time ran out first
POST /sim/faults           {"fault", "count", "skip", "path"}: the fault of requests that name none; {} for none
POST /sim/state            {"health": 503, "serving": false, "hung": true}: /health's status; "serving": false answers
                           requests with 503; "hung" stops the engine behind a server that lives
POST /sim/reset            forget ledger, counters, metrics, prefix cache, default fault and state
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol
from urllib.parse import parse_qs

import msgspec

from tests.support.simulated.http import Connection, Request
from tests.support.simulated.ledger import Ledger


class Worker(Protocol):
    """The worker under control."""

    loop: asyncio.AbstractEventLoop
    tasks: set[asyncio.Task[None]]
    ledger: Ledger
    health: int
    serving: bool
    hung: bool

    def fault(self, spec: str, count: int | None = None, skip: int = 0, path: str = "") -> None: ...
    def reset(self) -> None: ...


class _Waiting:
    """A control request that waits; its client may leave."""

    def lost(self) -> None: ...

    def resume(self) -> None: ...


def answer(worker: Worker, connection: Connection, request: Request, path: str) -> None:
    """Answer one control request."""
    query = {key: values[-1] for key, values in parse_qs(request.target.partition(b"?")[2].decode()).items()}
    ledger = worker.ledger
    try:
        given = msgspec.json.decode(request.body) if request.body else {}
        if path == "/sim/ledger":
            said: Any = {**ledger.counters(), "entries": ledger.dump(int(query.get("since", 0)))}
        elif path == "/sim/counters":
            said = ledger.counters()
        elif path == "/sim/faults":
            worker.fault(given.get("fault", ""), given.get("count"), given.get("skip", 0), given.get("path", ""))
            said = {"fault": given.get("fault", "")}
        elif path == "/sim/state":
            worker.health = int(given.get("health", worker.health))
            worker.serving = bool(given.get("serving", worker.serving))
            worker.hung = bool(given.get("hung", worker.hung))
            said = {"health": worker.health, "serving": worker.serving, "hung": worker.hung}
        elif path == "/sim/reset":
            worker.reset()
            said = {}
        elif path == "/sim/wait":
            connection.answering = _Waiting()
            task = worker.loop.create_task(_wait(ledger, connection, query))
            worker.tasks.add(task)
            task.add_done_callback(worker.tasks.discard)
            return
        else:
            connection.answer(404, b'{"error":"no such control"}')
            return
    except (ValueError, TypeError, AttributeError) as error:
        connection.answer(400, msgspec.json.encode({"error": str(error)}))
        return
    connection.answer(200, msgspec.json.encode(said))


async def _wait(ledger: Ledger, connection: Connection, query: dict[str, str]) -> None:
    status = 200
    said: dict[str, Any] = {"met": True}
    try:
        timeout = float(query.pop("timeout", 5))
        await ledger.wait(timeout, **{key: int(value) for key, value in query.items()})
    except TimeoutError:
        said = {"met": False}
    except ValueError as error:
        status, said = 400, {"error": str(error)}
    if not connection.closing:
        connection.answer(status, msgspec.json.encode({**said, **ledger.counters()}))
