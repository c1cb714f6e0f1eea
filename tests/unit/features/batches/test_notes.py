"""What was done of a batch is read, and its results are put together, in slices that end where the batch does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.config.batches import Batches
from gateway.features.batches.disk import Directory
from gateway.features.batches.notes import Done, assemble, read
from gateway.features.batches.run import BatchRun
from gateway.features.batches.state import Held, Lost, Spec, State
from gateway.features.batches.storage import last, lines

SLICE = 1 << 18
RESULT = b'{"custom_id": "c", "result": "%b"}' % (b"x" * 1000)
LINES = 2000
ENDPOINT = "/v1/chat/completions"


class Watched:
    """Texts, and how many bytes of them were read."""

    def __init__(self, texts: Iterator[bytes]) -> None:
        self._texts = texts
        self.bytes = 0

    def __iter__(self) -> Watched:
        return self

    def __next__(self) -> bytes:
        text = next(self._texts)
        self.bytes += len(text)
        return text


def notes() -> list[bytes]:
    """Those of a batch of LINES, of which each third has failed, and the last hundred have no result."""
    found = [b"%d begun\n" % number for number in range(1, LINES + 1)]
    found += [b"%d %b %b\n" % (n, b"ok" if n % 3 else b"no", RESULT) for n in range(1, LINES - 99)]
    return [*found, b"1 ok twice\n", b"2000 ok cut off"]


def files(folder: Path) -> list[Path]:
    return [one for one in folder.rglob("*") if one.is_file()]


def spec() -> Spec:
    who: dict[str, Any] = {"owner": "o", "key": "k", "team": None, "models": None}
    return Spec("batch_1", "openai", endpoint=ENDPOINT, input="file-1", window="24h", created=0.0, ends=1e12, **who)


def line(number: int) -> bytes:
    return b'{"custom_id": "c%d", "url": "%b", "body": {}, "method": "POST"}\n' % (number, ENDPOINT.encode())


class Noted(Directory):
    """A folder whose notes are `notes`. begun: called as the first of them is read."""

    def __init__(self, place: Path, begun: Callable[[], object] = lambda: None) -> None:
        super().__init__(str(place))
        self._begun = begun
        self.texts = Watched(iter(notes()))

    def noted(self, id_: str) -> Iterator[bytes]:
        self._begun()
        return self.texts


def test_notes_are_read_in_slices() -> None:
    texts = Watched(iter(notes()))
    before, most = 0, 0
    done = Done()
    for found in read(texts, LINES):
        before, most, done = texts.bytes, max(most, texts.bytes - before), found
    assert most <= SLICE + len(RESULT) + 20
    assert before > 6 * SLICE
    failed = len(range(3, LINES - 99, 3))
    assert (done.succeeded, done.failed, done.begun) == (LINES - 100 - failed, failed, 100)


def test_results_are_put_together_in_slices(tmp_path: Path) -> None:
    storage = Noted(tmp_path)
    path = storage.path_of("batch_1.input")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(map(line, range(1, LINES + 1))))
    before, most, done, sizes = 0, 0, Done(), dict[str, int]()
    for found in assemble(storage, spec(), LINES, "expired", ("file-out", "file-err")):
        before, most = storage.texts.bytes, max(most, storage.texts.bytes - before)
        done, sizes = found
    assert most <= SLICE + len(RESULT) + 20
    out, err = (storage.path_of(id_).read_bytes().splitlines() for id_ in ("file-out", "file-err"))
    assert (len(out), len(err)) == (done.succeeded, done.failed + 100)
    assert b"batch_expired" in err[-1]
    assert sizes == {id_: storage.path_of(id_).stat().st_size for id_ in ("file-out", "file-err")}


def test_results_that_nobody_wants_any_more_leave_no_file(tmp_path: Path) -> None:
    storage = Noted(tmp_path)
    steps = assemble(storage, spec(), LINES, "expired", ("file-out", "file-err"))
    next(steps)
    assert files(tmp_path)
    steps.close()
    assert files(tmp_path) == []


@pytest.mark.parametrize("begin", [b"\r" * 50, b" " * 50, b"{}" + b"\r" * 50, b"{}\r\r", b"{}" + b" " * 7, b"x" * 11])
def test_a_line_is_one_line_however_long(tmp_path: Path, begin: bytes) -> None:
    """A result is found by the number of its line, whatever the longest line was while it was counted."""
    file = tmp_path / "input"
    file.write_bytes(begin + b"\r\n{}\n" + begin)
    for most in (10, 1 << 40):
        with file.open("rb") as opened:
            found, behind = lines(opened, 1, most)
        assert {one.number: one.text for one in found}[2] == b"{}"
        assert behind == 4
        assert all(one.text is None or len(one.text) <= most for one in found)


class Steps:
    """Steps of which the second begins, and waits. ended: how many have."""

    def __init__(self) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.ended = 0
        self.closed = False

    def take(self) -> Generator[int, None, None]:
        try:
            for number in range(100):
                if number == 1:
                    self.entered.set()
                    self.go_on.wait(30)
                self.ended += 1
                yield number
        finally:
            self.closed = True


@pytest.mark.parametrize("by", ["cancelling", "its end"])
async def test_nothing_follows_the_step_under_way(by: str) -> None:
    steps, over = Steps(), threading.Event()
    task = asyncio.create_task(last(steps.take(), over.is_set))
    assert await asyncio.to_thread(steps.entered.wait, 30)
    if by == "cancelling":
        task.cancel()
    over.set()
    await asyncio.sleep(0)
    assert not task.done()
    steps.go_on.set()
    (found,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(found, asyncio.CancelledError) if by == "cancelling" else found is None
    assert (steps.ended, steps.closed) == (2, True)


async def test_the_last_step_counts_and_an_error_is_raised() -> None:
    assert await last((number for number in range(3)), lambda: False) == 2

    def broken() -> Generator[int, None, None]:
        yield 1
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await last(broken(), lambda: False)


ENDS: dict[str, Callable[[BatchRun], None]] = {
    "cancelled": lambda run: run._stop("cancelled"),  # as its own watch does
    "left": lambda run: run.leave(),
    "lost": lambda run: run._break(Lost("gone")),  # as its own watch does
}


def run_of(storage: Noted) -> BatchRun:
    async def write(*_: object) -> bool:
        return False

    shared: Any = SimpleNamespace(storage=storage, store=SimpleNamespace(write=write), ends=asyncio.Semaphore(1))
    shared.options = Batches(directory="/nowhere")
    return BatchRun(shared, Held(spec(), State("in_progress", LINES), 1, ""))


@pytest.mark.parametrize("why", ENDS)
async def test_a_batch_that_is_over_reads_no_further(why: str, tmp_path: Path) -> None:
    """Nothing is lost by that: its results are put together from all notes."""
    storage = Noted(tmp_path, lambda: ENDS[why](run))
    run = run_of(storage)
    if why == "lost":
        with pytest.raises(Lost):
            await run._go_on()  # this step alone
    else:
        await run._go_on()  # this step alone
    assert storage.texts.bytes <= SLICE + len(RESULT) + 20
    assert (run._state.succeeded, run._state.failed) == (0, 0)  # nothing of it was counted


@pytest.mark.parametrize("by", ["lost", "cancelling"])
async def test_results_of_a_lease_that_is_lost_are_put_together_no_further(by: str, tmp_path: Path) -> None:
    storage = Noted(tmp_path, lambda: ENDS["lost"](run) if by == "lost" else loop.call_soon_threadsafe(task.cancel))
    run, loop = run_of(storage), asyncio.get_running_loop()
    task = asyncio.create_task(run._finish())  # this step alone
    (found,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(found, Lost if by == "lost" else asyncio.CancelledError)
    assert storage.texts.bytes <= 2 * (SLICE + len(RESULT) + 20)  # the loop may hear of it within the next step
    assert files(tmp_path) == []
