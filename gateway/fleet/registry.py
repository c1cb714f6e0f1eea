"""The registry of workers in Redis, as `workers/registry.py` writes it; docs/workers.md has the format.

Entries are checked: an entry must have the right form, and its address must be a plain URL. Still, everybody who can
write to the registry can receive requests, so protect it with a password.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from gateway.core.ports import Facts
from gateway.fleet.discovery import Fleet, FoundWorker

INDEX = "{dragoman-workers}"
READ_S = 0.5
LINGER_S = 10.0
"""Seconds for which an entry is kept after it vanished without notice (a killed worker, an emptied Redis). Health
probes show whether the worker still answers."""
FORMAT = 1
_MOST_WORKERS = 1000
_ADDRESS = re.compile(
    r"https?://(?:[A-Za-z0-9._-]{1,253}|\[[0-9a-fA-F:.]{2,45}\])(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~-]+)*\Z"
)


class WorkerEntry(msgspec.Struct, frozen=True):
    """One worker's entry in the registry. Members that are not named here are for people."""

    format: int
    id: str
    address: str
    models: tuple[str, ...]
    engine: str = ""
    version: str | None = None
    max_model_len: int | None = None
    abilities: dict[str, bool] = {}
    draining: bool = False

    def member(self) -> FoundWorker:
        return FoundWorker(self.address, self.draining, Facts(self.version, self.max_model_len, self.abilities))


_decoder = msgspec.json.Decoder(WorkerEntry)


def decode(text: bytes) -> WorkerEntry | None:
    """The entry, or None when it has another format or is malformed."""
    try:
        record = _decoder.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    dots = {".", ".."} & set(record.address.split("/"))
    return record if record.format == FORMAT and _ADDRESS.match(record.address) and not dots else None


class Registry:
    """Reads all entries; a source of `Discovery`.

    client  a redis-py client (asyncio); `smembers` and `mget` are used
    models  model by its name in the configuration -> the name that its workers serve
    clock   monotonic seconds
    """

    name = "registry"
    interval_s = READ_S

    def __init__(self, client: Any, models: Mapping[str, str], clock: Callable[[], float]) -> None:
        self._client = client
        self._models = dict(models)
        self._clock = clock
        self._seen: dict[str, tuple[WorkerEntry, float]] = {}
        self._read_at: float | None = None

    async def read(self) -> Fleet:
        found = await self._records()
        now = self._clock()
        away = now - self._read_at - 2 * READ_S if self._read_at is not None else 0.0
        self._read_at = now
        if away > 0:  # time without a working Redis does not count: a Redis that returns may be empty
            self._seen = {worker: (record, seen + away) for worker, (record, seen) in self._seen.items()}
        for record in found:
            self._seen[record.id] = (record, now)
        addresses = {record.address for record in found}
        for worker, (record, seen) in list(self._seen.items()):
            if seen == now:
                continue
            # A worker that was draining has left as announced. One whose address has a new entry was restarted.
            if record.draining or record.address in addresses or now - seen > LINGER_S:
                del self._seen[worker]
        fleet: Fleet = {}
        for name, served in self._models.items():
            records = [record for record, _ in self._seen.values() if served in record.models]
            fleet[name] = [record.member() for record in sorted(records, key=lambda record: record.address)]
        return fleet

    async def _records(self) -> Sequence[WorkerEntry]:
        ids = sorted(await self._client.smembers(INDEX))[:_MOST_WORKERS]
        if not ids:
            return []
        values = await self._client.mget([INDEX.encode() + b":" + one for one in ids])
        decoded = [decode(value) for value in values if value is not None]
        return [record for record in decoded if record is not None]
