"""The registry of workers in Redis, as `workers/registry.py` writes it; docs/workers.md has the format.

Entries are checked: an entry must have the right form, stand under its own id, and its address must be a plain URL.
Entries that are too large or too many are left out before they are fetched. Still, any client that can write to the
registry can receive requests, so protect it with a password.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.core.addresses import base_address
from gateway.core.ports import Facts
from gateway.fleet.discovery import MOST_WORKERS, Fleet, FoundWorker

READ_S = 0.5
LINGER_S = 10.0
"""Seconds for which an entry stays after it vanished without notice, as that of a killed worker does. Health probes
show whether the worker still answers."""
FORMAT = 1
_LONGEST_ID = 64
_MOST_BYTES = 1 << 16
"""Bytes of an entry; one with a thousand LoRA adapters has some 30 KB."""
_MOST_BYTES_TOGETHER = 1 << 22
_MOST_LOOKED = 10_000
"""Ids of which the script looks whether they have an entry. Workers remove those that have none."""
_SLICE = 50
"""Entries that are decoded in one turn of the event loop, some 5 us each."""
_ADDRESS = re.compile(
    r"https?://(?:[A-Za-z0-9._-]{1,253}|\[[0-9a-fA-F:.]{2,45}\])(?::([0-9]{1,5}))?(?:/[A-Za-z0-9._~-]+)*\Z"
)

_SCRIPT = """
local found, cursor, looked, bytes, passed = {0}, '0', 0, 0, 0
local most, longest_id, longest, together, most_looked = unpack(ARGV)
repeat
  local step = redis.call('SSCAN', KEYS[1], cursor, 'COUNT', 200)
  cursor = step[1]
  for _, id in ipairs(step[2]) do
    looked = looked + 1
    local key = KEYS[1] .. ':' .. id
    local size = #id <= tonumber(longest_id) and redis.pcall('STRLEN', key) or longest + 1
    if type(size) ~= 'number' or size > tonumber(longest) then
      passed = passed + 1
    elseif size > 0 then
      if #found > 2 * most or bytes + size > tonumber(together) then
        passed = passed + 1
      else
        bytes = bytes + size
        found[#found + 1] = id
        found[#found + 1] = redis.call('GET', key)
      end
    end
  end
until cursor == '0' or looked >= tonumber(most_looked)
if cursor ~= '0' then passed = passed + redis.call('SCARD', KEYS[1]) - looked end
found[1] = passed
return found
"""
"""Returns the registry's entries, [number of those passed over, id, entry, id, entry, ...]. The script checks sizes, so
that Redis never sends an entry that is too large."""

_Text = Annotated[str, Meta(max_length=256)]


class WorkerEntry(msgspec.Struct, frozen=True):
    """One worker's entry in the registry. Members that are not named here are for people."""

    format: int
    id: Annotated[str, Meta(pattern=rf"^[A-Za-z0-9._-]{{1,{_LONGEST_ID}}}$")]
    address: Annotated[str, Meta(max_length=1024)]
    models: Annotated[tuple[_Text, ...], Meta(max_length=2048)]
    engine: _Text = ""
    version: _Text | None = None
    max_model_len: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    abilities: Annotated[dict[_Text, bool], Meta(max_length=64)] = {}
    draining: bool = False
    leaving: bool = False

    def member(self) -> FoundWorker:
        facts = Facts(self.version, self.max_model_len, self.abilities)
        return FoundWorker(self.address, self.draining or self.leaving, facts, self.leaving)


_decoder = msgspec.json.Decoder(WorkerEntry)


def _entry(served: str, member: FoundWorker) -> WorkerEntry:
    """An entry for a worker of which only this is known. It stands for one model, and under no id of a worker."""
    facts = member.facts
    return WorkerEntry(
        format=FORMAT,
        id="",
        address=member.address,
        models=(served,),
        version=facts.version,
        max_model_len=facts.max_model_len,
        abilities=dict(facts.abilities),
        draining=member.draining,
        leaving=member.leaving,
    )


def index_of(namespace: str) -> str:
    """The key of the set of all ids. The braces put the entries into the same slot of a cluster."""
    return f"{{{namespace}-workers}}"


def decode(worker: bytes, text: bytes) -> WorkerEntry | None:
    """The entry of the id `worker`, or None if it has another format, is malformed, or names another id."""
    try:
        record = _decoder.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    address = _ADDRESS.match(record.address)
    dots = {".", ".."} & set(record.address.split("/"))
    wrong = address is None or not 0 < int(address[1] or 1) < 65_536 or dots
    if wrong or record.format != FORMAT or record.id.encode() != worker:
        return None
    base = base_address(record.address)
    return record if base == record.address else msgspec.structs.replace(record, address=base)


class EmptyRegistry(Exception):
    """Redis has no entry, and yet workers that had one answer their probes: Redis was emptied, or refuses writes."""


class Registry:
    """Reads all entries; a source of `Discovery`.

    client  a redis-py client (asyncio); `eval` is used
    models  model by its name in the configuration -> the name that its workers serve
    clock   monotonic seconds
    report  called with how many entries count for nothing (malformed, too large, too many), when that changed
    known   the fleets from before; one without an entry lingers from the first reading on
    ready   returns the addresses of the workers that answer their probes
    """

    name = "registry"
    interval_s = READ_S

    def __init__(
        self,
        client: Any,
        models: Mapping[str, str],
        clock: Callable[[], float],
        namespace: str = "dragoman",
        report: Callable[[int], None] = lambda ignored: None,
        known: Fleet | None = None,
        ready: Callable[[], Set[str]] = frozenset,
    ) -> None:
        self._client = client
        self._index = index_of(namespace)
        self._models = dict(models)
        self._clock = clock
        self._report = report
        self._ready = ready
        self._ignored = 0
        self._read_at: float | None = None
        # Each entry by its id, and the seconds for which it stays if it is not read again.
        self._entries: dict[str, tuple[WorkerEntry, float]] = {
            f"{model} {member.address}": (_entry(self._models[model], member), LINGER_S)
            for model, members in (known or {}).items()
            for member in members
            if model in self._models
        }

    async def read(self) -> Fleet:
        """The workers of each model. Raises EmptyRegistry, and what redis-py raises."""
        found = await self._records()
        addresses = {record.address for record in found}
        # A worker that was draining has left as announced. One whose address has a new entry was restarted.
        absent = {
            worker: (record, left)
            for worker, (record, left) in self._entries.items()
            if not record.draining and record.address not in addresses
        }
        if absent and not found and not self._ready().isdisjoint(record.address for record, _ in absent.values()):
            raise EmptyRegistry
        now = self._clock()
        # Time without a working Redis does not count: a Redis that returns may be empty.
        passed = 0.0 if self._read_at is None else min(now - self._read_at, 2 * READ_S)
        self._read_at = now
        self._entries = {worker: (record, left - passed) for worker, (record, left) in absent.items() if left >= passed}
        self._entries |= {record.id: (record, LINGER_S) for record in found}
        return self._fleet([record for record, _ in self._entries.values()])

    def _fleet(self, records: Sequence[WorkerEntry]) -> Fleet:
        """One member an address: of several entries, one that is not draining. No entry takes another worker out."""
        serving: dict[str, dict[str, WorkerEntry]] = {served: {} for served in self._models.values()}
        for record in sorted(records, key=lambda one: (one.address, not one.draining, one.id)):
            for served in record.models:
                if served in serving:
                    serving[served][record.address] = record
        return {
            name: [record.member() for record in list(serving[served].values())[:MOST_WORKERS]]
            for name, served in self._models.items()
        }

    async def _records(self) -> Sequence[WorkerEntry]:
        bounds = MOST_WORKERS, _LONGEST_ID, _MOST_BYTES, _MOST_BYTES_TOGETHER, _MOST_LOOKED
        ignored, *entries = await self._client.eval(_SCRIPT, 1, self._index, *bounds)
        records: list[WorkerEntry] = []
        for index in range(0, len(entries), 2):
            record = decode(entries[index], entries[index + 1])
            if record is None:
                ignored += 1
            else:
                records.append(record)
            if index % (2 * _SLICE) == 2 * (_SLICE - 1):
                await asyncio.sleep(0)
        if ignored != self._ignored:
            self._ignored = ignored
            self._report(ignored)
        return records
