"""`dragoman logs`: a gateway's log, filtered, as lines to read or as it is."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from time import sleep
from typing import Any, BinaryIO

import msgspec

from gateway import moments
from gateway.cli import CommandError
from gateway.cli.colours import coloured
from gateway.core.written import Moment
from gateway.observe.log import LEVELS, readable

_OUTCOMES = ("ok", "refused", "failed", "cancelled")
_MOST_BYTES = 1 << 24
"""A line has so many at most. The gateway writes shorter ones: a longer one is cut, and then is not JSON."""
_LOOK_S = 0.2
"""Between two looks for more of a file."""
_FIELDS = {"key": ("key",), "model": ("model", "asked", "alias"), "outcome": ("outcome",), "id": ("id",)}
"""Options -> the fields of a record of which one must have a value that was given."""
_ALWAYS = ("level", "event")
_LATEST = 253_402_214_400
"""Unix seconds: the end of the year 9999."""
_decode = msgspec.json.Decoder().decode

ABOUT = (
    "It is a file's, or comes on standard input, as in `kubectl logs deploy/dragoman | dragoman logs`. It must be in "
    "JSON, as it is where the gateway does not run on a terminal (log.format). Filters select the records that all of "
    "them let pass; the exit status is 1 if none did."
)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", nargs="?", default="-", help="the log (default: -, standard input)")
    several = "; again for more (default: all)"
    parser.add_argument(
        "--key", metavar="NAME", action="append", help=f"only requests of this key, by its name{several}"
    )
    what = f"only records on this model, by its name or what clients call it{several}"
    parser.add_argument("--model", metavar="NAME", action="append", help=what)
    parser.add_argument("--outcome", action="append", choices=_OUTCOMES, help=f"only requests that ended so{several}")
    parser.add_argument("--id", metavar="ID", action="append", help=f"only the request with this x-request-id{several}")
    parser.add_argument(
        "--level", choices=LEVELS, default="debug", help="only records of this level or a worse one (default: debug)"
    )
    parser.add_argument(
        "--follow", "-f", action="store_true", help="go on with what the gateway adds to the file, until Ctrl-C"
    )
    parser.add_argument("--json", action="store_true", help="print the records as they are, a line of JSON each")


def run(options: argparse.Namespace) -> int:
    if options.follow and options.file == "-":
        raise CommandError("--follow is for a file: standard input is followed to its end in any case")
    live, shown = options.follow or options.file == "-", 0
    filters = [(_FIELDS[name], wanted) for name in _FIELDS if (wanted := getattr(options, name)) is not None]
    filtered = bool(filters) or options.level != "debug"
    with suppress(KeyboardInterrupt), ExitStack() as files:
        for line in _followed(options.file, files) if options.follow else _opened(options.file, files):
            record = _record(line)
            if record is None:
                text = "" if filtered or options.json else _harmless(line)
            elif not _passes(record, filters, LEVELS[options.level]):
                text = ""
            else:
                text = (
                    line.decode(errors="replace") if options.json else coloured(readable([record], days=True).decode())
                )
            if text:
                sys.stdout.write(text)
                shown += 1
                if live:
                    sys.stdout.flush()
    if filtered and not shown:
        raise CommandError("no record passes these filters", 1)
    return 0


def _record(line: bytes) -> dict[str, Any] | None:
    """None for a line that is not a record: one of another program, or one that was cut."""
    try:
        found = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(found, dict) or not all(isinstance(found.get(name), str) for name in _ALWAYS):
        return None
    with suppress(ValueError):
        found["time"] = moments.read(Moment, found.get("time"))
        return found if found["level"] in LEVELS and 0 <= found["time"] < _LATEST else None
    return None


def _passes(record: dict[str, Any], filters: list[tuple[tuple[str, ...], list[str]]], level: int) -> bool:
    return LEVELS[record["level"]] >= level and all(
        any(record.get(field) in wanted for field in fields) for fields, wanted in filters
    )


def _harmless(line: bytes) -> str:
    """A line of another program, whose characters cannot move the cursor."""
    text = line.decode(errors="replace").rstrip("\r\n")
    return "".join(char if char.isprintable() or char == "\t" else "?" for char in text) + "\n"


def _open(name: str, files: ExitStack) -> BinaryIO:
    try:
        return files.enter_context(open(name, "rb"))
    except OSError as error:
        raise CommandError(error) from None


def _opened(name: str, files: ExitStack) -> Iterator[bytes]:
    """The lines of a file, or of standard input."""
    file = sys.stdin.buffer if name == "-" else _open(name, files)
    yield from iter(lambda: file.readline(_MOST_BYTES), b"")


def _followed(name: str, files: ExitStack) -> Iterator[bytes]:
    """The lines of a file without end. If another file takes its name, as when logs are rotated, that one's follow."""
    file, begun = _open(name, files), b""
    while True:
        block = file.readline(_MOST_BYTES - len(begun))
        begun += block
        if begun.endswith(b"\n") or len(begun) >= _MOST_BYTES:
            yield begun
            begun = b""
        elif not block:
            if (other := _replacement(name, file)) is not None:
                file.close()
                file, begun = files.enter_context(other), b""
            else:
                sleep(_LOOK_S)


def _replacement(name: str, file: BinaryIO) -> BinaryIO | None:
    """The file that has this name now, if it is another one or was emptied; None otherwise, and while there is none."""
    with suppress(OSError):
        now, then = Path(name).stat(), os.fstat(file.fileno())
        if (now.st_dev, now.st_ino) != (then.st_dev, then.st_ino) or now.st_size < file.tell():
            return open(name, "rb")
    return None
