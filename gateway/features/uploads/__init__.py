"""Uploads on their way in: read in pieces, parsed as they come, their files put into a temporary file.

So the model may be named anywhere in an upload, a slow client holds no worker, and an attempt that fails loses nothing
(decision 16 of docs/decisions.md). Threads write and read the file, because a disk may be slow.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, ParamSpec, TypeVar

from gateway.core.byte_budget import SMALL, Held
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Request
from gateway.core.upload import Fetched
from gateway.features import Built, Parts
from gateway.kernel.bodies import Blocks
from gateway.kernel.call import Call
from gateway.kernel.reading import coding_of_body
from gateway.wire.multipart import FormReader

BLOCK_BYTES = 256 * 1024
"""The most bytes of one upload that wait to be written."""
_threads = ThreadPoolExecutor(4, "uploads")
P = ParamSpec("P")
T = TypeVar("T")


class Spool:
    """The files of one upload: in memory while they are small, then in a file without a name. Implements
    core.upload.Source."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._file: IO[bytes] | None = None
        self._lock = threading.Lock()
        self._users = 0  # threads at the file
        self._closed = False

    # -- on the way in ----------------------------------------------------------------------------------------------

    def add(self, block: bytes) -> None:
        self._waiting += block

    @property
    def due(self) -> bool:
        """`flush` must be called before more is added."""
        return len(self._waiting) >= BLOCK_BYTES

    async def flush(self) -> None:
        """Writes what was added, unless it is all there is and small. Raises GatewayError(OVERLOADED) if the disk does
        not take it."""
        if not self._waiting or (self._file is None and len(self._waiting) <= SMALL):
            return
        block, self._waiting = self._waiting, bytearray()
        try:
            await asyncio.wrap_future(_threads.submit(self._use, self._write, block))
        except OSError:
            message = "the gateway has no room for an upload on its disk"
            raise GatewayError(Kind.OVERLOADED, message, code="no_room_for_upload", retry_after=1.0) from None

    def _write(self, block: bytearray) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (closed by `close`)
        view = memoryview(block)
        while view:
            view = view[self._file.write(view) :]

    # -- on the way out ---------------------------------------------------------------------------------------------

    @property
    def whole(self) -> bytes | None:
        return bytes(self._waiting) if self._file is None else None

    def fetch(self, start: int, size: int, then: Fetched) -> None:
        loop = asyncio.get_running_loop()

        def fetched(future: Future[bytes]) -> None:
            data = None if future.exception() is not None or len(future.result()) != size else future.result()
            if not loop.is_closed():
                loop.call_soon_threadsafe(then, data)

        _threads.submit(self._use, self._read, start, size).add_done_callback(fetched)

    def _read(self, start: int, size: int) -> bytes:
        assert self._file is not None
        return os.pread(self._file.fileno(), size, start)

    # -- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        self._waiting = bytearray()
        with self._lock:
            idle, self._closed = not self._closed and not self._users, True
        if idle and self._file is not None:
            _threads.submit(self._file.close)  # to free a large file takes milliseconds

    def _is_closed(self) -> bool:
        return self._closed

    def _use(self, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """Does `work` in this thread, unless the file is closed: then its number may be another file's already."""
        with self._lock:
            if self._closed:
                raise ValueError("closed")
            self._users += 1
        try:
            return work(*given, **named)
        finally:
            with self._lock:
                self._users -= 1
                file = self._file if not self._users and self._is_closed() else None
            if file is not None:
                file.close()


async def receive_form(call: Call) -> None:
    """Reads the body of an upload, once its caller has passed the limits that count requests. Raises GatewayError."""
    runtime, client = call.runtime, call.client
    await call.admit_early()
    client.disk = Held(runtime.budgets.uploads, call.owner)
    body = Blocks(client, call.request.headers, coding_of_body(call), runtime.max_body_bytes, call.hold_expanded)
    await receive(call.request, body, client.disk)


async def receive(request: Request, body: Blocks, room: Held) -> None:
    """Reads `body`, that of `request`, into its `form`, whose source must be closed in the end. `room` grows with it;
    the caller gives it back.

    Raises GatewayError: MEDIA_TYPE, OVERLOADED if the budget or the disk has no room, and what `body` does. Nothing
    more is read then."""
    spool = Spool()
    try:
        reader = FormReader(request.header(b"content-type"), spool.add)
        size = 0
        if body.announced > SMALL:
            room.require(body.announced)
        while (block := await body.next()) is not None:
            size += len(block)
            if size > SMALL and size > room.size:
                room.require(size)
            reader.feed(block)
            if spool.due:
                await spool.flush()
        form = reader.end(spool)
        await spool.flush()
    except BaseException:
        spool.close()
        raise
    request.form = form


def build(parts: Parts) -> Built:
    parts.offers.receive_form = receive_form
    return Built()
