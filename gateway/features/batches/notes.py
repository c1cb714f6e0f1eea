"""The notes of what was done of a batch, and the results that come of them.

A note is a line: `N begun`, then `N back` if it has to begin again, or `N ok RESULT`, or `N no RESULT`. N is the number
of a line of the batch, and RESULT is for its client. Notes of several leases may name the same line: the first result
counts. A last line without an end was cut off by the death of its gateway, and does not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Iterator
from hashlib import blake2b
from typing import BinaryIO

from gateway.config import Batches
from gateway.features.batches.lines import FORMS, Form, Undone
from gateway.features.batches.state import Fault, Spec
from gateway.features.batches.storage import Sink, Storage, aside, lines

_MOST_FAULTS = 100
_SLICE = 1 << 18
"""Bytes of notes that one step reads: a thread does so in a few milliseconds."""


class Done:
    """The lines with a result, of so many: a bit for each.

    begun  lines that were begun and have none
    """

    def __init__(self, total: int = 0) -> None:
        self._bits = bytearray(total // 8 + 1)
        self.succeeded = self.failed = self.begun = 0

    def has(self, number: int) -> bool:
        at = number >> 3
        return at < len(self._bits) and bool(self._bits[at] & (1 << (number & 7)))

    def add(self, number: int, good: bool) -> bool:
        """False if it has one already."""
        if self.has(number):
            return False
        at = number >> 3
        if at >= len(self._bits):
            self._bits.extend(bytes(at + 1 - len(self._bits)))
        self._bits[at] |= 1 << (number & 7)
        if good:
            self.succeeded += 1
        else:
            self.failed += 1
        return True


class Notes:
    """Adds notes to a file, those that come while it writes all at once."""

    def __init__(self, file: Sink) -> None:
        self._file = file
        self._pending: list[bytes] = []
        self._written: asyncio.Future[None] | None = None
        self._writing: asyncio.Task[None] | None = None

    async def add(self, note: bytes) -> None:
        """Returns once it is in the file. Raises OSError."""
        self._pending.append(note)
        if self._written is None:
            self._written = asyncio.get_running_loop().create_future()
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        await asyncio.shield(self._written)

    async def _write(self) -> None:
        while self._written is not None:
            written, self._written = self._written, None
            notes, self._pending = b"".join(self._pending), []
            try:
                await aside(self._file.write, notes)
            except OSError as error:
                written.set_exception(error)
                written.exception()  # not all may wait for it
            else:
                written.set_result(None)
        self._writing = None

    async def close(self) -> None:
        if self._writing is not None:
            await self._writing
        await aside(self._file.close)


def _noted(texts: Iterable[bytes]) -> Iterator[list[tuple[int, bytes, bytes]]]:
    """(number of a line, what of it, its result) of every note, slice by slice."""
    found: list[tuple[int, bytes, bytes]] = []
    size = 0
    for text in texts:
        size += len(text)
        number, _, rest = text.removesuffix(b"\n").partition(b" ")
        what, _, result = rest.partition(b" ")
        if text.endswith(b"\n") and number.isdigit() and what in (b"begun", b"back", b"ok", b"no"):
            found.append((int(number), what, result))
        if size >= _SLICE:
            yield found
            found, size = [], 0
    yield found


def read(texts: Iterable[bytes], total: int) -> Generator[Done, None, None]:
    """The lines that are done by these notes, slice by slice; the last one counts. Each step blocks."""
    begun: set[int] = set()
    done = Done(total)
    for notes in _noted(texts):
        for number, what, _ in notes:
            if what == b"begun":
                begun.add(number)
                continue
            begun.discard(number)
            if what != b"back":
                done.add(number, what == b"ok")
        yield done
    done.begun = len([number for number in begun if not done.has(number)])
    yield done


def checked(
    file: BinaryIO, form: Form, endpoint: str, options: Batches
) -> Generator[tuple[int, list[Fault]], None, None]:
    """(how many requests are in the file, what is wrong with them: the first hundred faults), slice by slice; the last
    one counts. Each step blocks."""
    digests: set[bytes] = set()
    faults: list[Fault] = []
    total, at = 0, 1
    while True:
        found, behind = lines(file, at, options.max_line_bytes)
        if behind == at:
            break
        at = behind
        for line in found:
            total += 1
            if total > options.max_lines:
                message = f"A batch may have {options.max_lines} requests at most."
                yield total, [Fault("too_many_requests", message)]
                return
            fault = _fault(line.text, form, endpoint, digests, options)
            if fault is not None:
                fault.line = line.number
                faults.append(fault)
                if len(faults) >= _MOST_FAULTS:
                    yield total, faults
                    return
        yield total, faults
    if not total:
        faults.append(Fault("empty_file", "The input file has no requests."))
    yield total, faults


def _fault(text: bytes | None, form: Form, endpoint: str, digests: set[bytes], options: Batches) -> Fault | None:
    if text is None:
        return Fault("request_too_large", f"This line has more than {options.max_line_bytes} bytes.")
    found = form.read(text, endpoint)
    if isinstance(found, Fault):
        return found
    digest = blake2b(found.custom_id.encode(errors="surrogatepass"), digest_size=12).digest()
    if digest in digests:
        return Fault("duplicate_custom_id", "An earlier line has the same custom_id.", param="custom_id")
    digests.add(digest)
    return None


def assemble(
    storage: Storage, spec: Spec, total: int, why: Undone, ids: tuple[str, str | None]
) -> Generator[tuple[Done, dict[str, int]], None, None]:
    """Writes the files with results, slice by slice: (those of requests that succeeded, those of the others), or one
    file of all. Lines without a result get one that says why. Gives the lines with a result so far, and, in the end,
    the bytes of each file that is not empty. Each step blocks."""
    done = Done(total)
    written = {id_: storage.begin(id_) for id_ in ids if id_ is not None}
    output, error = written[ids[0]], written[ids[1] or ids[0]]
    try:
        for notes in _noted(storage.noted(spec.id)):
            for number, what, result in notes:
                if result and done.add(number, what == b"ok"):
                    (output if what == b"ok" else error).write(result + b"\n")
            yield done, {}
        if done.succeeded + done.failed < total:
            for results in _undone(storage, spec, done, why):
                error.write(b"".join(results))
                yield done, {}
    except BaseException:
        for id_, sink in written.items():
            storage.drop(id_, sink, alone=False)
        raise
    sizes = {id_: sink.tell() for id_, sink in written.items()}
    for id_, sink in written.items():
        if sizes[id_]:
            storage.keep(id_, sink)
        else:
            storage.drop(id_, sink)
    yield done, {id_: size for id_, size in sizes.items() if size}


def _undone(storage: Storage, spec: Spec, done: Done, why: Undone) -> Iterator[list[bytes]]:
    """The results of the lines that are not done, slice by slice."""
    form, at, behind = FORMS[spec.kind], 0, 1
    with storage.open(f"{spec.id}.input") as file:
        while behind != at:
            at = behind
            found, behind = lines(file, at, 1 << 40)
            asked = [form.read(line.text, spec.endpoint) for line in found if line.text and not done.has(line.number)]
            yield [form.undone(one.custom_id, why) + b"\n" for one in asked if not isinstance(one, Fault)]
