"""Every request that the worker saw, its end, and a way to wait for events without sleeping."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any

from workers.simulated import engine


class Entry(engine.Entry, kw_only=True, gc=False):
    """One request.

    headers  names in lower case
    state    running, completed, aborted (the client left first) or failed (a fault ended it)
    status   the status sent, or 0 when none was
    kv       its part in an exchange between workers: prefill, decode, or "" for none
    """

    number: int
    id: str
    method: str
    path: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    connection: int
    generation: bool = True
    state: str = "running"
    status: int = 0
    ended: float = 0.0
    fault: str = ""
    kv: str = ""

    def header(self, name: str) -> str | None:
        """The first header called `name`, whatever its case."""
        wanted = name.lower().encode()
        return next((value.decode("latin-1") for key, value in self.headers if key == wanted), None)


class Ledger:
    """The requests of one worker. Counters count generation requests only; `entries` holds every API request."""

    def __init__(self, size: int) -> None:
        self._entries: deque[Entry] = deque(maxlen=size)
        self.numbers = 0
        self.waiters: list[tuple[dict[str, int], asyncio.Future[None]]] = []
        self.running = self.waiting = self.received = self.completed = self.aborted = self.failed = self.connections = 0

    @property
    def entries(self) -> list[Entry]:
        """A copy, since a test's thread may look while the worker's thread adds to them."""
        return list(self._entries)

    def open(
        self,
        method: str,
        path: str,
        headers: tuple[tuple[bytes, bytes], ...],
        body: bytes,
        connection: int,
        generation: bool,
    ) -> Entry:
        """Record a received request."""
        self.numbers += 1
        entry = Entry(
            time.monotonic(),
            number=self.numbers,
            id="",
            method=method,
            path=path,
            headers=headers,
            body=body,
            connection=connection,
            generation=generation,
        )
        self._entries.append(entry)
        if generation:
            self.received += 1
            self.running += 1
            if self.waiters:
                self.check()
        return entry

    def close(self, entry: Entry, state: str) -> None:
        """Record the end of a request; only the first end counts."""
        if entry.state != "running":
            return
        entry.state = state
        entry.ended = time.monotonic()
        if not entry.generation:
            return
        self.running -= 1
        if state == "completed":
            self.completed += 1
        elif state == "aborted":
            self.aborted += 1
        else:
            self.failed += 1
        if self.waiters:
            self.check()

    def counters(self) -> dict[str, int]:
        """The counters that `wait` understands."""
        return {
            "running": self.running,
            "waiting": self.waiting,
            "received": self.received,
            "completed": self.completed,
            "aborted": self.aborted,
            "failed": self.failed,
            "connections": self.connections,
        }

    def met(self, wanted: dict[str, int]) -> bool:
        """Levels (running, waiting, connections) must be equal, counts must be reached."""
        now = self.counters()
        return all(
            now[key] == value if key in ("running", "waiting", "connections") else now[key] >= value
            for key, value in wanted.items()
        )

    def check(self) -> None:
        """Wake the waiters whose condition is met; called at every change."""
        for wanted, future in self.waiters:
            if not future.done() and self.met(wanted):
                future.set_result(None)

    async def wait(self, timeout: float = 20.0, **wanted: int) -> None:  # noqa: ASYNC109 (its error names the counters)
        """Wait until the counters are as wanted. Raises TimeoutError (naming them) after `timeout` seconds."""
        if unknown := wanted.keys() - self.counters().keys():
            raise ValueError(f"no such counter: {', '.join(sorted(unknown))}")
        if self.met(wanted):
            return
        waiter = (wanted, asyncio.get_running_loop().create_future())
        self.waiters.append(waiter)
        try:
            await asyncio.wait_for(waiter[1], timeout)
        except TimeoutError:
            raise TimeoutError(f"wanted {wanted}, have {self.counters()}") from None
        finally:
            self.waiters.remove(waiter)

    def forget(self) -> None:
        """Forget all entries; counters stay."""
        self._entries.clear()

    def reset(self) -> None:
        """Forget all ended requests; running ones stay counted."""
        self.forget()
        self.received = self.running
        self.completed = self.aborted = self.failed = 0

    def dump(self, since: int = 0) -> list[dict[str, Any]]:
        """The entries after number `since`, ready for JSON."""
        rows = []
        for entry in self.entries:
            if entry.number > since:
                row = {name: getattr(entry, name) for name in entry.__struct_fields__}
                row["headers"] = [[key.decode("latin-1"), value.decode("latin-1")] for key, value in entry.headers]
                row["body"] = entry.body.decode("utf-8", "replace")
                rows.append(row)
        return rows
