"""Metrics and state of several processes that share an address: whichever of them is asked shows those of all.

Each process listens on a Unix socket in a folder that they share. It answers `_METRICS` with what its registry
collects, as MessagePack of `_Answer`, and `_STATE` with what it says of its state. One that does not answer in time
shows no gauges this time.

Counters never fall when a process dies or is slow: at every scrape the one that is scraped writes into the folder what
it was told (`_Kept`), and adds what it finds there of processes that no longer answer. What a process counted after the
last scrape before its death is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.observe.catalogue import FIGURES
from gateway.observe.figure import Across

_ANSWER_S = 1.0
_METRICS, _STATE = b"m", b"s"
"""What is asked for: the one byte of a question."""


class _Family(msgspec.Struct, array_like=True):
    """One metric of one process. samples are (name, labels, value)."""

    name: str
    text: str
    kind: str
    samples: list[tuple[str, dict[str, str], float]]


class _Answer(msgspec.Struct, array_like=True):
    """What the process `life` collects. A number's next process has a greater one."""

    life: int
    families: list[_Family]


class _Kept(msgspec.Struct, array_like=True):
    """The counters of one number: those of `life` as they were last seen, and of all before it together."""

    life: int = 0
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
        self._life = time.monotonic_ns()
        self._server: asyncio.Server | None = None
        # Two scrapes at once would write one file of this process's.
        self._keeping = threading.Lock()

    async def start(self, registry: CollectorRegistry, state: Callable[[], bytes]) -> None:
        """Answers the others from now on; `state` gives its state. Takes over the socket of a process that died."""

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
        """What `registry` and the other processes show now, and the counters of those that are gone. Exemplars are left
        out."""
        told = asyncio.gather(*(self._asked(number) for number in range(self.count) if number != self._number))
        answers = {self._number: await self._own(registry)}
        answers.update({number: answer for number, answer in await told if answer is not None})
        return _Together(await asyncio.to_thread(self._kept, answers))

    async def states(self) -> list[bytes]:
        """What the other processes say of their state; those that do not answer in time are left out."""
        others = (_ask(self._socket(number), _STATE) for number in range(self.count) if number != self._number)
        return [said for said in await asyncio.gather(*others) if said]

    async def _own(self, registry: CollectorRegistry) -> _Answer:
        return _Answer(self._life, [family async for family in _families(registry)])

    async def _asked(self, number: int) -> tuple[int, _Answer | None]:
        try:
            return number, _answer.decode(await _ask(self._socket(number), _METRICS))
        except msgspec.DecodeError:
            return number, None

    def _socket(self, number: int) -> Path:
        return self._folder / f"{number}.sock"

    def _kept(self, answers: Mapping[int, _Answer]) -> list[list[_Family]]:
        """All that is to be shown. Writes the counters of `answers` into the folder, and reads there what is in none of
        them.

        Several processes may do so at a time: whoever finds an earlier life than that which answered puts away what was
        seen of it, and all who do so write the same.
        """
        with self._keeping:
            return self._kept_alone(answers)

    def _kept_alone(self, answers: Mapping[int, _Answer]) -> list[list[_Family]]:
        found = []
        for number in range(self.count):
            path, answer = self._folder / f"{number}.counters", answers.get(number)
            try:
                kept = _counters.decode(path.read_bytes())
            except (OSError, msgspec.DecodeError):
                kept = _Kept()
            if answer is None or answer.life < kept.life:
                found += [kept.before, kept.seen]
                continue
            before = kept.before if kept.life == answer.life else _summed([kept.before, kept.seen])
            found += [before, answer.families]
            new = path.with_suffix(f".{self._number}.new")
            with contextlib.suppress(OSError):  # a full disk: counters may fall, and are shown all the same
                new.write_bytes(_encode(_Kept(answer.life, _summed([answer.families]), before)))
                new.replace(path)
        return found


def _summed(processes: Iterable[Sequence[_Family]]) -> list[_Family]:
    """The counters of several processes, each the sum; what is no counter is left out."""
    kinds: dict[str, _Family] = {}
    values: dict[str, dict[_Series, float]] = {}
    for families in processes:
        for family in families:
            if family.kind not in ("counter", "histogram") or _across(family.name) != "sum":
                continue
            kinds[family.name] = family
            series = values.setdefault(family.name, {})
            for name, labels, value in family.samples:
                if not name.endswith("_created"):
                    at = name, tuple(labels.items())
                    series[at] = series.get(at, 0.0) + value
    return [
        _Family(name, one.text, one.kind, [(of, dict(pairs), value) for (of, pairs), value in values[name].items()])
        for name, one in kinds.items()
    ]


async def _families(registry: CollectorRegistry) -> AsyncIterator[_Family]:
    """The event loop has its turn between two of them."""
    for metric in registry.collect():
        samples = [(sample.name, dict(sample.labels), float(sample.value)) for sample in metric.samples]
        yield _Family(metric.name, metric.documentation, metric.type, samples)
        await asyncio.sleep(0)


async def _ask(path: Path, what: bytes) -> bytes:
    """Nothing from a process that is not there, or does not answer in time."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(what)
                return await reader.read()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return b""


class _Together(Collector):
    """Each figure once: the sum over the processes, or what `Figure.across` says."""

    def __init__(self, processes: Iterable[Sequence[_Family]]) -> None:
        self._metrics: dict[str, Metric] = {}
        values: dict[str, dict[_Series, list[float]]] = {}
        for families in processes:
            for family in families:
                if family.name not in self._metrics:
                    self._metrics[family.name] = Metric(family.name, family.text, family.kind)
                series = values.setdefault(family.name, {})
                for name, labels, value in family.samples:
                    series.setdefault((name, tuple(labels.items())), []).append(value)
        for family_name, found in values.items():
            combine = _COMBINE[_across(family_name)]
            for (name, pairs), numbers in found.items():
                self._metrics[family_name].add_sample(name, dict(pairs), combine(numbers))

    def collect(self) -> Iterable[Metric]:
        return self._metrics.values()


_Series = tuple[str, tuple[tuple[str, str], ...]]
_COMBINE: dict[str, Callable[[Iterable[float]], float]] = {"sum": sum, "min": min, "max": max}


def _across(family: str) -> Across:
    figure = FIGURES.get(family) or FIGURES.get(f"{family}_total")
    return figure.across if figure is not None else "sum"
