"""The storage for the bytes of files and results: what a folder (`disk`) and a bucket (`bucket`) both do, and how
files are read that lie in either.

A file is whole once it has its name. Names are ids that this room has made, never a client's words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from io import BufferedReader
from typing import BinaryIO, NamedTuple, ParamSpec, Protocol, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")

_BLOCK = 1 << 18
# A store that hangs holds these, and none of the threads in which names of workers are looked up.
_THREADS = ThreadPoolExecutor(16, "batches")


class _Closed(Protocol):
    def close(self) -> object: ...


F = TypeVar("F", bound=_Closed)


class Line(NamedTuple):
    """A line of a file without its end. number: from 1; text: its bytes, or None if there are too many."""

    number: int
    text: bytes | None


class Sink(Protocol):
    """A file that is being written."""

    def write(self, data: bytes, /) -> object: ...
    def tell(self) -> int: ...
    def close(self) -> None: ...


class Storage(Protocol):
    """Every method blocks: call it by `aside`. Raises OSError everywhere; FileNotFoundError for what is not there.

    held  most bytes in memory of a file that is being written
    """

    held: int

    def check(self) -> None:
        """Raises OSError if nothing can be written there."""

    def begin(self, id_: str) -> Sink:
        """A new file to write to: `keep` or `drop` ends it."""

    def keep(self, id_: str, file: Sink) -> int:
        """The file is whole: it has its name from now on. Returns its bytes."""

    def drop(self, id_: str, file: Sink, *, alone: bool = True) -> None:
        """Removes the file, which is not wanted. alone: nobody else writes one of this name."""

    def link(self, id_: str, other: str) -> None:
        """Gives a file another name, too, or copies it."""

    def open(self, id_: str) -> BinaryIO: ...

    def lost(self, id_: str) -> bool:
        """Whether the file is gone for good: the store is there."""

    def remove(self, ids: Iterable[str]) -> None:
        """Removes these files, and what was done of batches with these ids."""

    def append_to(self, id_: str, lease: int) -> Sink:
        """The file in which the holder of the lease of a batch notes its work. Its
        notes stay, should it die."""

    def noted(self, id_: str) -> Iterator[bytes]:
        """The lines with their ends that all holders of the lease have noted, those of the first one first."""

    def old(self, keep_s: float) -> Mapping[str, str]:
        """Path -> id of its file or batch, for parts of uploads that have ended, and what is older than anything is
        kept: a gateway that died had no time to remove them. Only names and paths that this room gives: other
        people's files are theirs."""

    def discard(self, paths: Iterable[str]) -> None:
        """Removes what is at these paths of `old`."""


async def aside(function: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
    """Calls it in a thread of this room."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, lambda: function(*args, **more))


async def opened(open_: Callable[[], F], undo: Callable[[F], object] = lambda file: file.close()) -> F:
    """Opens a file by `open_`, in a thread of this room. If this is cancelled meanwhile, `undo` is called with the file
    there, once it is open: nobody else knows of it."""
    made = _THREADS.submit(open_)
    try:
        return await asyncio.wrap_future(made)
    except asyncio.CancelledError:
        made.add_done_callback(partial(_undo, undo))
        raise


def _undo(undo: Callable[[F], object], made: Future[F]) -> None:
    if not made.cancelled() and made.exception() is None:
        _THREADS.submit(undo, made.result())


async def last(steps: Generator[T, None, None], over: Callable[[], bool]) -> T | None:
    """The last of `steps`, each of which is taken in a thread of this room; None once `over` is true. Then, and when
    this is cancelled, the step under way is the last one, and `steps` is closed behind it."""
    found: T | None = None
    step: asyncio.Future[T | None] | None = None
    try:
        while not over():
            step = asyncio.ensure_future(aside(next, steps, None))
            one = await asyncio.shield(step)
            if one is None:
                return found
            found = one
        return None
    finally:
        if step is not None:
            await asyncio.gather(step, return_exceptions=True)
        await aside(steps.close)


def lines(file: BinaryIO, first: int, most_bytes: int) -> tuple[list[Line], int]:
    """The next lines of `file`, of which the first has the number `first`, and the number of the line behind them. They
    are about 256 KiB, without the blank ones: those are passed over at the speed of memory. At its end the number is
    `first`."""
    found: list[Line] = []
    size = 0
    while size < _BLOCK:
        passed, blank = _blank(cast("BufferedReader", file))
        if passed:
            size, first = size + passed, first + blank
            continue
        text = file.readline(most_bytes + 2)
        if not text:
            break
        size += len(text)
        if len(text.rstrip(b"\r\n")) > most_bytes or (len(text) > most_bytes + 1 and not text.endswith(b"\n")):
            while text and not text.endswith(b"\n"):
                text = file.readline(_BLOCK)
            found.append(Line(first, None))
        elif text := text.strip():
            found.append(Line(first, text))
        first += 1
    return found, first


def _blank(file: BufferedReader) -> tuple[int, int]:
    """Passes over blank lines that are in memory. Returns their bytes, and how many they are."""
    ahead = file.peek(_BLOCK)
    end = ahead.rfind(b"\n", 0, len(ahead) - len(ahead.lstrip())) + 1
    return len(file.read(end)), ahead.count(b"\n", 0, end)


def blocks(file: BinaryIO) -> Iterator[bytes]:
    """The rest of `file`."""
    while block := file.read(_BLOCK):
        yield block
