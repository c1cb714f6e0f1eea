"""Discovery of a model's workers while the gateway runs: DNS here, the registry in `gateway.fleet.registry`.

When a source cannot be read, the last known fleet stays, and health probes judge each of its workers.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from gateway.background import cancel_tasks
from gateway.core.ports import BEYOND, UNKNOWN, Capabilities, Facts
from gateway.resolve import look_up

MOST_WORKERS = 1000
"""Most workers that are taken from one source; `models.NAME.workers` has the same bound."""
READ_S = 2.0
"""Seconds after which reading a source counts as failed."""
_ABSENT_S = 10.0
"""After so many seconds in which a registry has no worker, or name servers answer that nobody has a name, that is the
answer: a model may have no worker now. Earlier, workers may be about to come: machines start together."""
_ABSENT = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})


class FoundWorker(Struct, frozen=True):
    """One worker of a fleet. draining: it finishes its requests and takes no new ones. leaving: the time that it had
    for them is over."""

    address: str
    draining: bool = False
    facts: Facts = UNKNOWN
    leaving: bool = False


def able(declared: Capabilities, members: Sequence[FoundWorker]) -> Capabilities:
    """The capabilities that every worker has: those declared, narrowed by what the workers report about themselves."""
    facts = [member.facts for member in members]
    contexts = [one.max_model_len for one in facts if one.max_model_len is not None]
    versions = [_numbers(one.version) for one in facts if one.version is not None]
    everybody = frozenset(name for name in BEYOND if facts and all(one.abilities.get(name) for one in facts))
    return replace(
        declared,
        max_context=declared.max_context or min(contexts, default=None),
        lacks=frozenset(name for one in facts for name, able in one.abilities.items() if not able) - BEYOND,
        beyond=everybody | (BEYOND & (declared.features or frozenset())),
        version=min((one for one in versions if one), default=()),
    )


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d{1,6}(?:\.\d{1,6}){0,3}", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


Fleet = dict[str, list[FoundWorker]]
"""Model, by its name in the configuration -> its workers."""


class Source(Protocol):
    """A place to look up workers. name is for the log; interval_s is the time between two look-ups."""

    name: str
    interval_s: float

    async def read(self) -> Fleet:
        """The current workers of every model that this source knows. May raise any exception."""


Resolve = Callable[[str, int], Awaitable[Iterable[str]]]
"""(host name, port) -> addresses; raises OSError."""


class Dns:
    """Each address of a host name is a worker, as with a headless Service of Kubernetes."""

    def __init__(self, model: str, host: str, port: int, interval_s: float, resolve: Resolve = look_up) -> None:
        self.name = f"dns {host}:{port}"
        self.interval_s = interval_s
        self._model = model
        self._host = host
        self._port = port
        self._resolve = resolve

    async def read(self) -> Fleet:
        addresses = sorted(set(await self._resolve(self._host, self._port)))
        if not addresses:
            raise socket.gaierror(socket.EAI_NODATA, "no address")
        return {self._model: [FoundWorker(_url(address, self._port)) for address in addresses[:MOST_WORKERS]]}


def _url(address: str, port: int) -> str:
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


class Discovery:
    """Reads every source periodically and reports changed fleets.

    fixed   workers that the configuration lists, by model: always members
    known   the fleets of the previous configuration, or of the process before; they hold until a source was read
    apply   called with (model, members) whenever a model's fleet changed
    report  called with (source's name, the error or None) when a source is lost and when it is back
    unread  the sources that have not been read yet, and of which nothing is known from before
    """

    def __init__(
        self,
        sources: Sequence[Source],
        fixed: Mapping[str, Sequence[str]],
        apply: Callable[[str, Sequence[FoundWorker]], Awaitable[None]],
        report: Callable[[str, str | None], None],
        known: Mapping[str, Fleet] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources = sources
        self._fixed = {model: [FoundWorker(address) for address in addresses] for model, addresses in fixed.items()}
        self._apply = apply
        self._report = report
        self.read = {source.name: dict((known or {}).get(source.name, {})) for source in sources}
        self.read_at: dict[str, float] = {}
        self.unread = {source.name for source in sources} - (known or {}).keys()
        self._clock = clock
        self._absent_since: dict[str, float] = {}
        self._shown: Fleet = {}
        self._lost: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    async def start(self) -> None:
        """Reads every source once, then continues in the background."""
        await asyncio.gather(*(self.look(source) for source in self._sources))
        for model in self._fixed:
            await self._show(model)
        self._tasks = [asyncio.create_task(self._watch(source)) for source in self._sources]

    async def close(self) -> None:
        self._closed = True  # redis-py may swallow the cancellation: it uses wait_for, which does so before Python 3.12
        await cancel_tasks(*self._tasks)

    async def look(self, source: Source) -> None:
        """Reads one source now. Raises what `apply` raises."""
        before = self.read[source.name]
        try:
            async with asyncio.timeout(READ_S):
                self.read[source.name] = await source.read()
        except Exception as error:  # any trouble of a source leaves the known fleet as it is
            self._unanswered(source.name, error)
            if source.name not in self._lost:
                self._lost.add(source.name)
                self._report(source.name, type(error).__name__)
        else:
            if any(self.read[source.name].values()):
                self._absent_since.pop(source.name, None)
                self.unread.discard(source.name)
            else:
                self._absent(source.name)
            self.read_at[source.name] = time.time()
            if source.name in self._lost:
                self._lost.discard(source.name)
                self._report(source.name, None)
        for model in {*before, *self.read[source.name]}:
            await self._show(model)

    def _unanswered(self, source: str, error: Exception) -> None:
        """A source could not be read. A name that nobody has names no worker."""
        if isinstance(error, socket.gaierror) and error.errno in _ABSENT:
            self._absent(source)
        else:
            self._absent_since.pop(source, None)

    def _absent(self, source: str) -> None:
        """A source has no worker. A Redis that was emptied has none until they have entered it again."""
        if self._clock() - self._absent_since.setdefault(source, self._clock()) >= _ABSENT_S:
            self.unread.discard(source)

    async def _watch(self, source: Source) -> None:
        while not self._closed:
            await asyncio.sleep(source.interval_s)
            try:
                await self.look(source)
            except Exception as error:  # discovery must go on
                self._report(source.name, f"{type(error).__name__}: {error}")

    async def _show(self, model: str) -> None:
        members = {member.address: member for fleet in self.read.values() for member in fleet.get(model, ())}
        # A listed worker stays a member. If it has an entry in a registry, that has more facts and goes first.
        for member in self._fixed.get(model, ()):
            members.setdefault(member.address, member)
        now = list(members.values())
        if self._shown.get(model) != now:
            self._shown[model] = now
            await self._apply(model, now)
