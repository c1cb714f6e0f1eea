"""Metrics and state of several processes that share an address: any of them shows those of all.

Each process listens on a Unix socket in a folder that they share. Its answer to `_METRICS` is an `_Answer`, the
families that its registry collects, as MessagePack; its answer to `_STATE` is its state. A process that does not answer
in time shows no gauges this time.

Counters never fall when a process dies or is slow: at every scrape the scraped process writes the counters of the
others into the folder (`_Kept`), and adds what it finds there of processes that no longer answer. The counts between
the last scrape and the death of a process are lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.observe.catalogue import FIGURES
from gateway.observe.figure import Combine

_ANSWER_S = 1.0
_METRICS, _STATE = b"m", b"s"
"""The one byte of a question."""

_COMBINE: dict[Combine, Callable[[Iterable[float]], float]] = {"sum": sum, "min": min, "max": max}
_Series = tuple[str, tuple[tuple[str, str], ...]]
"""The name of a sample and its labels."""


class _Family(msgspec.Struct, array_like=True):
    """One metric of one process."""

    name: str
    text: str
    kind: str
    samples: list[tuple[_Series, float]]

    @property
    def across(self) -> Combine:
        figure = FIGURES.get(self.name) or FIGURES.get(f"{self.name}_total")
        return figure.across if figure is not None else "sum"


class _Answer(msgspec.Struct, array_like=True):
    """The families of a process. began is a clock reading at its start: the next process of its number has a greater
    one."""

    began: int
    families: list[_Family]


class _Kept(msgspec.Struct, array_like=True):
    """The counters of one number: those of the process that began then as they were last seen, and the sums of all
    processes before it."""

    began: int = 0
    seen: list[_Family] = []
    before: list[_Family] = []


_encode = msgspec.msgpack.Encoder().encode
_answer = msgspec.msgpack.Decoder(_Answer)
_counters = msgspec.msgpack.Decoder(_Kept)


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
        self._began = time.monotonic_ns()
        self._server: asyncio.Server | None = None
        # Two scrapes at once would write one file of this process's.
        self._keeping = threading.Lock()

    async def start(self, registry: CollectorRegistry, state: Callable[[], bytes]) -> None:
        """Answers the others from now on; `state` returns its state. Takes over the socket of a process that died."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                if await reader.read(1) == _STATE:
                    writer.write(state())
                else:
                    writer.write(_encode(await self._own(registry)))
                await writer.drain()
            writer.close()

        own = self._socket(self._number)
        own.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(answer, own)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def together(self, registry: CollectorRegistry) -> Collector:
        """The families of `registry` and of the other processes now, and the counters of processes that are gone.
        Exemplars are left out."""
        asking = asyncio.gather(*map(self._metrics_of, self._others()))
        answers = {self._number: await self._own(registry)}
        for number, answer in zip(self._others(), await asking, strict=True):
            if answer is not None:
                answers[number] = answer
        return _Together(_combined(await asyncio.to_thread(self._kept, answers)))

    async def states(self) -> list[bytes]:
        """The states of the other processes; those that do not answer in time are left out."""
        states = await asyncio.gather(*(self._ask(number, _STATE) for number in self._others()))
        return [state for state in states if state]

    def _others(self) -> list[int]:
        return [number for number in range(self.count) if number != self._number]

    async def _own(self, registry: CollectorRegistry) -> _Answer:
        families = []
        for metric in registry.collect():
            samples = [((one.name, tuple(one.labels.items())), float(one.value)) for one in metric.samples]
            families.append(_Family(metric.name, metric.documentation, metric.type, samples))
            await asyncio.sleep(0)  # the event loop has its turn between two of them
        return _Answer(self._began, families)

    async def _metrics_of(self, number: int) -> _Answer | None:
        try:
            return _answer.decode(await self._ask(number, _METRICS))
        except msgspec.DecodeError:
            return None

    async def _ask(self, number: int, question: bytes) -> bytes:
        """The answer of another process; empty if it is not there, or does not answer in time."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                reader, writer = await asyncio.open_unix_connection(self._socket(number))
                try:
                    writer.write(question)
                    return await reader.read()
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return b""

    def _socket(self, number: int) -> Path:
        return self._folder / f"{number}.sock"

    def _kept(self, answers: Mapping[int, _Answer]) -> list[list[_Family]]:
        """All families to show. Writes the counters of `answers` into the folder, and reads there those of processes
        without an answer.

        Several processes may do so at a time. If one finds the counters of an earlier process than the one that
        answered, it adds them to `before`, and all that do so write the same.
        """
        found = []
        with self._keeping:
            for number in range(self.count):
                path, answer = self._folder / f"{number}.counters", answers.get(number)
                try:
                    kept = _counters.decode(path.read_bytes())
                except (OSError, msgspec.DecodeError):
                    kept = _Kept()
                if answer is None or answer.began < kept.began:
                    found += [kept.before, kept.seen]
                    continue
                before = kept.before
                if kept.began != answer.began:
                    before = _combined([kept.before, kept.seen])
                found += [before, answer.families]
                new = path.with_suffix(f".{self._number}.new")
                with contextlib.suppress(OSError):  # a full disk: counters may fall, and are shown all the same
                    new.write_bytes(_encode(_Kept(answer.began, _only_counters(answer.families), before)))
                    new.replace(path)
        return found


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


class _Together(Collector):
    def __init__(self, families: Sequence[_Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        for family in self._families:
            metric = Metric(family.name, family.text, family.kind)
            for (name, labels), value in family.samples:
                metric.add_sample(name, dict(labels), value)
            yield metric
