"""Metrics and state of several processes that share an address: any of them shows those of all.

Each process listens on a Unix socket in a folder that they share. A question is a line. Its answer to `_METRICS` is the
families that its registry collects, as MessagePack; all other questions are those of who asks by `ask`. A process that
does not answer in time shows no gauges this time.

Counters never fall when a process dies or is slow: before a process shows its counters, it writes them into a file.
That file is read instead of an answer that does not come, and the next process of the same number goes on from there.
The counts between the last scrape and the death of a process are lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.observe.catalogue import FIGURES, Combine
from gateway.observe.exposition import Fixed

_ANSWER_S = 1.0
_METRICS = b"metrics"

_COMBINE: dict[Combine, Callable[[Iterable[float]], float]] = {"sum": sum, "min": min, "max": max}
_Series = tuple[str, tuple[tuple[str, str], ...]]
"""The name of a sample and its labels."""


class _Family(msgspec.Struct, array_like=True):
    name: str
    text: str
    kind: str
    samples: list[tuple[_Series, float]]

    @property
    def across(self) -> Combine:
        figure = FIGURES.get(self.name) or FIGURES.get(f"{self.name}_total")
        return figure.across if figure is not None else "sum"


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(list[_Family])


class ProcessGroup:
    """One process of several.

    folder  holds a socket and a file for each, named by its number; no other user may enter it
    number  of this one, from 0
    count   of all
    """

    def __init__(self, folder: Path, number: int, count: int) -> None:
        self.count = count
        self._folder = folder
        self._number = number
        self._server: asyncio.Server | None = None
        # Two scrapes at once would write one file.
        self._writing = asyncio.Lock()
        self._before = self._read(number)

    async def start(self, registry: CollectorRegistry, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        """Answers the others from now on, by `answer` what they `ask`. Takes over the socket of a process that died."""

        async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                question = (await reader.readline()).removesuffix(b"\n")
                found = _encode(await self._own(registry)) if question == _METRICS else await answer(question)
                writer.write(found)
                await writer.drain()
            writer.close()

        own = self._socket(self._number)
        own.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(answered, own)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def together(self, registry: CollectorRegistry) -> Collector:
        """The families of `registry` and of the other processes now, and the counters of processes that are gone.
        Exemplars are left out."""
        asking = asyncio.gather(*map(self._families_of, self._others()))
        families = _combined([await self._own(registry), *await asking])
        return Fixed(list(map(_metric, families)))

    async def ask(self, question: bytes) -> list[bytes]:
        """The answers of the other processes; those that do not answer in time are left out. question: one line."""
        answers = await asyncio.gather(*(self._ask(number, question) for number in self._others()))
        return [answer for answer in answers if answer]

    def _others(self) -> list[int]:
        return [number for number in range(self.count) if number != self._number]

    async def _own(self, registry: CollectorRegistry) -> list[_Family]:
        families = []
        for metric in registry.collect():
            samples = [((one.name, tuple(one.labels.items())), float(one.value)) for one in metric.samples]
            families.append(_Family(metric.name, metric.documentation, metric.type, samples))
            await asyncio.sleep(0)  # the event loop has its turn between two of them
        families = _combined([self._before, families])
        async with self._writing:
            await asyncio.to_thread(self._write, families)
        return families

    async def _families_of(self, number: int) -> list[_Family]:
        try:
            return _decoder.decode(await self._ask(number, _METRICS))
        except msgspec.DecodeError:
            return await asyncio.to_thread(self._read, number)

    async def _ask(self, number: int, question: bytes) -> bytes:
        """The answer of another process; empty if it is not there, or does not answer in time."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                reader, writer = await asyncio.open_unix_connection(self._socket(number))
                try:
                    writer.write(question + b"\n")
                    return await reader.read()
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return b""

    def _socket(self, number: int) -> Path:
        return self._folder / f"{number}.sock"

    def _file(self, number: int) -> Path:
        return self._folder / f"{number}.counters"

    def _read(self, number: int) -> list[_Family]:
        """The counters that the process of this number showed last, and those before it."""
        try:
            return _decoder.decode(self._file(number).read_bytes())
        except (OSError, msgspec.DecodeError):
            return []

    def _write(self, families: list[_Family]) -> None:
        new = self._file(self._number).with_suffix(".new")
        with contextlib.suppress(OSError):  # a full disk: counters may fall, and are shown all the same
            new.write_bytes(_encode(_only_counters(families)))
            new.replace(self._file(self._number))


def _only_counters(families: Iterable[_Family]) -> list[_Family]:
    """Those that only grow, without the times of their creation."""
    return [
        _Family(one.name, one.text, one.kind, [each for each in one.samples if not each[0][0].endswith("_created")])
        for one in families
        if one.kind in ("counter", "histogram") and one.across == "sum"
    ]


def _combined(processes: Iterable[Sequence[_Family]]) -> list[_Family]:
    """Each family once: of each series the sum over the processes, or what `Figure.across` says."""
    first: dict[str, _Family] = {}
    values: dict[str, dict[_Series, list[float]]] = {}
    for families in processes:
        for family in families:
            first.setdefault(family.name, family)
            series = values.setdefault(family.name, {})
            for at, value in family.samples:
                series.setdefault(at, []).append(value)
    return [
        _Family(name, one.text, one.kind, [(at, _COMBINE[one.across](found)) for at, found in values[name].items()])
        for name, one in first.items()
    ]


def _metric(family: _Family) -> Metric:
    metric = Metric(family.name, family.text, family.kind)
    for (name, labels), value in family.samples:
        metric.add_sample(name, dict(labels), value)
    return metric
