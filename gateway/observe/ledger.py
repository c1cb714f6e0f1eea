"""Sums of requests by day, key, team and model in Redis, for reports: no log pipeline is needed for them.

A day is one hash. A field is the JSON of [key, team, model], its value the five figures of `Sums`, apart by spaces. If
end users are known, a second hash has fields [key, team, model, end user], and the first is as exact as without. A
gateway adds up what its requests used, and sends it once a second. A batch that may have arrived is sent again under
its number, which the script remembers, so it counts once. While Redis is away the sums grow, and nothing is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, tzinfo
from hashlib import sha1
from importlib.resources import files
from time import time
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct

from gateway.background import cancel_tasks
from gateway.core.key_kind import KeyKind
from gateway.core.ports import RequestRecord
from gateway.core.written import Moment

RETENTION_S = 396 * 86_400
"""Thirteen months."""
MOST = 10_000
"""Most fields of a hash. The requests of further keys, or end users, are summed up under `OTHER`."""
OTHER = "other"
_BY_END_USER = ":end_users"
KEY_KINDS = (
    KeyKind("{NAMESPACE:spend}:writer:WRITER", saved=False),  # no later process is that writer
    KeyKind("{NAMESPACE:spend}:DAY:end_users"),
    KeyKind("{NAMESPACE:spend}:DAY"),
)
_AT_ONCE = 500
"""Fields of a day that are read at once: the event loop goes round in between."""
_EVERY_S = 1.0
_TIMEOUT_S = 5.0
_SCRIPT = files(__package__).joinpath("sums.lua").read_bytes()
_SHA = sha1(_SCRIPT, usedforsecurity=False).hexdigest()
_pack = msgspec.msgpack.Encoder().encode
_read_field = msgspec.json.Decoder(tuple[str | None, ...]).decode

Dimension = Literal["day", "key", "team", "model", "end_user"]
Whose = tuple[str | None, ...]
"""(key, team, model) or (key, team, model, end user)"""


class Unavailable(Exception):
    """The sums cannot be read now. The text names the class of the error."""


class Sums(Struct):
    """Requests that a worker was picked for, their tokens (cached: of the input), and nano of the currency."""

    requests: int = 0
    input: int = 0
    cached: int = 0
    output: int = 0
    cost: int = 0

    def add(self, requests: int, input: int, cached: int, output: int, cost: int) -> None:
        self.requests += requests
        self.input += input
        self.cached += cached
        self.output += output
        self.cost += cost

    @property
    def figures(self) -> tuple[int, int, int, int, int]:
        return self.requests, self.input, self.cached, self.output, self.cost


def figures_of(record: RequestRecord) -> tuple[int, int, int, int, int]:
    """The figures that `record` adds to `Sums`."""
    usage, cost = record.usage, 0 if record.cost is UNSET else record.cost
    if usage is None:
        return 1, 0, 0, 0, cost
    return 1, usage.input or 0, usage.cached or 0, usage.output or 0, cost


def _other(whose: Whose) -> Whose:
    return (OTHER, *whose[1:3], *(OTHER for _ in whose[3:]))


def _field(whose: Whose) -> str:
    return msgspec.json.encode(whose).decode()  # the script's msgpack knows text alone


class Ledger:
    """client, on_change, successor: as those of `accounting.AccountingStream`; the successor has the same namespace.
    zone: in which days begin. end_users: there are sums by end user."""

    def __init__(
        self,
        namespace: str,
        zone: tzinfo,
        client: Any,
        on_change: Callable[[str, str], None] = lambda state, reason: None,
        end_users: bool = False,
    ) -> None:
        self._end_users = end_users
        self._base = f"{{{namespace}:spend}}"
        self._writer = f"{self._base}:writer:{secrets.token_hex(8)}"
        self._zone = zone
        self._on_change = on_change
        self._client = client
        self._sums: dict[str, dict[Whose, Sums]] = {}  # by the hash's name behind `_base`
        # Number, keys and sums of what is under way or to be sent again: at most one, and those of ledgers before.
        self._batches: deque[tuple[int, list[Any], bytes]] = deque()
        self.successor: Ledger | None = None
        self._number = 0
        self._quarter, self._day = 0.0, ""
        self._writing: asyncio.Task[None] | None = None
        self._failing = False
        self._closing = False

    def add(self, record: RequestRecord) -> None:
        """Counts a request, whose record is complete."""
        if not record.attempts:
            return
        record.time = record.time or Moment(time())
        self._sum_up(record)
        self._begin()

    def _begin(self) -> None:
        if self._writing is None and self._waits:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    @property
    def _waits(self) -> bool:
        return bool(self._sums or self._batches)

    def _sum_up(self, record: RequestRecord) -> None:
        day, figures = self._day_of(record.time), figures_of(record)
        whose = (record.key, record.team, record.model)
        self._count(day, whose, figures)
        if self._end_users:
            named = "" if record.end_user is UNSET else record.end_user
            self._count(day + _BY_END_USER, (*whose, named), figures)

    def _count(self, suffix: str, whose: Whose, figures: tuple[int, int, int, int, int]) -> None:
        rows = self._sums.setdefault(suffix, {})
        sums = rows.get(whose)
        if sums is None:
            sums = rows.setdefault(whose if len(rows) < MOST else _other(whose), Sums())
        sums.add(*figures)

    def _take(self, sums: dict[str, dict[Whose, Sums]], batches: Iterable[tuple[int, list[Any], bytes]]) -> None:
        self._batches += batches
        for suffix, rows in sums.items():
            for whose, one in rows.items():
                self._count(suffix, whose, one.figures)
        self._begin()

    def _day_of(self, moment: float) -> str:
        quarter = moment // 900  # days begin at a full quarter of an hour everywhere
        if quarter != self._quarter:
            self._quarter, self._day = quarter, datetime.fromtimestamp(moment, self._zone).date().isoformat()
        return self._day

    async def _write(self) -> None:
        try:
            while self._waits:
                await asyncio.sleep(_EVERY_S)
                await self._send()
        finally:
            self._writing = None

    async def _send(self) -> bool:
        """Sends the batch that waits, or else what was summed up. Returns whether nothing is left to send again."""
        if not self._batches:
            if not self._sums:
                return True
            self._number += 1
            keys, packed = self._packed(self._sums)
            self._batches.append((self._number, [self._writer, *keys], packed))
            self._sums = {}
        number, names, packed = self._batches[0]
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._run(names, [number, RETENTION_S, MOST, packed, 0])
        except Exception as error:  # whatever the server or the network does, the batch waits and requests go on
            if not self._failing:
                self._failing = True
                self._on_change("failing", type(error).__name__)
            return False
        self._batches.popleft()
        if self._failing:
            self._failing = False
            self._on_change("writing", "")
        return True

    async def _run(self, keys: Sequence[Any], words: Sequence[Any]) -> None:
        try:
            await self._client.evalsha(_SHA, len(keys), *keys, *words)
        except Exception as error:
            if type(error).__name__ != "NoScriptError":  # the client's own class; it sends scripts by their hash alone
                raise
            await self._client.eval(_SCRIPT, len(keys), *keys, *words)

    def _packed(self, sums: dict[str, dict[Whose, Sums]]) -> tuple[list[bytes], bytes]:
        keys = [f"{self._base}:{suffix}".encode() for suffix in sums]
        rows = [
            (number, _field(whose), _field(_other(whose)), one.figures)
            for number, whole in enumerate(sums.values(), 2)
            for whose, one in whole.items()
        ]
        return keys, _pack(rows)

    async def rebuild(self, records: Iterable[RequestRecord]) -> int:
        """Raises the sums to those of `records`, which say when they ended; returns how many counted. Each figure
        becomes the larger of the two: what gateways count meanwhile stays, and a second time changes nothing. Raises
        `Unavailable`."""
        counted = 0
        for record in records:
            if record.attempts:
                self._sum_up(record)
                counted += 1
        sums, self._sums = self._sums, {}
        for suffix, rows in sums.items():
            names = list(rows)
            for begin in range(0, len(names), _AT_ONCE):
                some = {suffix: {whose: rows[whose] for whose in names[begin : begin + _AT_ONCE]}}
                self._number += 1
                keys, packed = self._packed(some)
                try:
                    await self._run([self._writer, *keys], [self._number, RETENTION_S, MOST, packed, 1])
                except Exception as error:  # whatever the server or the network does
                    raise Unavailable(f"redis: {type(error).__name__}") from error
        return counted

    async def report(self, days: Iterable[date], by: Sequence[Dimension]) -> dict[tuple[str, ...], Sums]:
        """The sums of these days by the values of `by`, in its order; "" is a key without a team. Raises
        `Unavailable`."""
        found: dict[tuple[str, ...], Sums] = {}
        try:
            for day in days:
                await self._read(day, by, found)
        except Exception as error:  # whatever the server or the network does
            raise Unavailable(f"redis: {type(error).__name__}") from error
        return found

    async def _read(self, day: date, by: Sequence[Dimension], found: dict[tuple[str, ...], Sums]) -> None:
        key = f"{self._base}:{day}{_BY_END_USER if 'end_user' in by else ''}"
        async for field, value in self._client.hscan_iter(key, count=_AT_ONCE):
            names = (one or "" for one in _read_field(field))
            row = dict(zip(("key", "team", "model", "end_user"), names, strict=False), day=day.isoformat())
            sums = found.setdefault(tuple(row[one] for one in by), Sums())
            sums.add(*map(int, value.split()))

    async def close(self) -> None:
        """Writes what is left if the server takes it now, or hands it over."""
        self._closing = True
        await cancel_tasks(self._writing)
        if (later := self.successor) is not None and not later._closing:
            later._take(self._sums, self._batches)
        else:
            while self._waits and await self._send():
                pass
            if self._waits:
                self._on_change("lost", "stopped while the server was away")
        with contextlib.suppress(Exception):
            await self._client.aclose()
