"""The notes of what was done of a batch, and the results that come of them.

A note is a line: `N begun`, then `N back` if it has to begin again, or `N ok RESULT`, or `N no RESULT`. N is the number
of a line of the batch, and RESULT is for its client. Notes of several leases may name the same line: the first result
counts. A last line without an end was cut off by the death of its gateway, and does not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import BinaryIO

from gateway.batches.lines import FORMS, Form, Undone
from gateway.batches.state import Fault, Spec
from gateway.batches.storage import Sink, Storage, aside, lines
from gateway.config import Batches

_MOST_FAULTS = 100


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


def _noted(texts: Iterable[bytes]) -> Iterator[tuple[int, bytes, bytes]]:
    """(number of a line, what of it, its result) of every note."""
    for text in texts:
        if not text.endswith(b"\n"):
            continue
        number, _, rest = text[:-1].partition(b" ")
        what, _, result = rest.partition(b" ")
        if number.isdigit() and what in (b"begun", b"back", b"ok", b"no"):
            yield int(number), what, result


def read(texts: Iterable[bytes], total: int) -> Done:
    """The lines that are done by these notes. Blocks if they are read by and by."""
    begun: set[int] = set()
    done = Done(total)
    for number, what, _ in _noted(texts):
        if what == b"begun":
            begun.add(number)
            continue
        begun.discard(number)
        if what != b"back":
            done.add(number, what == b"ok")
    done.begun = len([number for number in begun if not done.has(number)])
    return done


def checked(file: BinaryIO, form: Form, endpoint: str, options: Batches) -> Iterator[tuple[int, list[Fault]]]:
    """(how many requests are in the file, what is wrong with them: the first hundred faults), slice by slice; the last
    one counts. Each step blocks."""
    seen: set[bytes] = set()
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
            fault = _fault(line.text, form, endpoint, seen, options)
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


def _fault(text: bytes | None, form: Form, endpoint: str, seen: set[bytes], options: Batches) -> Fault | None:
    if text is None:
        return Fault("request_too_large", f"This line has more than {options.max_line_bytes} bytes.")
    found = form.read(text, endpoint)
    if isinstance(found, Fault):
        return found
    digest = blake2b(found.custom_id.encode(errors="surrogatepass"), digest_size=12).digest()
    if digest in seen:
        return Fault("duplicate_custom_id", "An earlier line has the same custom_id.", param="custom_id")
    seen.add(digest)
    return None


def assemble(storage: Storage, spec: Spec, total: int, why: Undone, ids: tuple[str, str | None]) -> dict[str, int]:
    """Writes the files with results: (those of requests that succeeded, those of the others), or one file of all.
    Lines without a result get one that says why. Returns the bytes of each file that is not empty. Blocks."""
    done, form = Done(total), FORMS[spec.kind]
    written = {id_: storage.begin(id_) for id_ in ids if id_ is not None}
    output, error = written[ids[0]], written[ids[1] or ids[0]]
    try:
        for number, what, result in _noted(storage.noted(spec.id)):
            if result and done.add(number, what == b"ok"):
                (output if what == b"ok" else error).write(result + b"\n")
        if done.succeeded + done.failed < total:
            with storage.open(f"{spec.id}.input") as file:
                at, behind = 0, 1
                while behind != at:
                    at = behind
                    found, behind = lines(file, at, 1 << 40)
                    for line in found:
                        if line.text and not done.has(line.number):
                            asked = form.read(line.text, spec.endpoint)
                            if not isinstance(asked, Fault):
                                error.write(form.undone(asked.custom_id, why) + b"\n")
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
    return {id_: size for id_, size in sizes.items() if size}
