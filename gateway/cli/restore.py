"""`dragoman restore`: Redis and the folder of batches as they were at `dragoman backup`.

The whole file is read and checked before anything is changed.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import os
import re
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import msgspec

from gateway.cli import CommandError, destructive
from gateway.cli.backup import FORMAT, HEAD, PART, Entry, Head, Server, shared
from gateway.cli.configured import FILE_HELP
from gateway.cli.progress import Progress, share
from gateway.config import Config, Redis
from gateway.ratelimit import HEARTBEATS

_FILE = re.compile(r"files/([^/.]{2}/[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*)")
_entries = msgspec.msgpack.Decoder(list[Entry])
_head = msgspec.json.Decoder(Head)

Member = tuple[tarfile.TarInfo, IO[bytes]]
ABOUT = "It checks the whole file first, and asks before it drops what is there."


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="what `dragoman backup` wrote")
    parser.add_argument("--config", metavar="FILE", help=FILE_HELP)
    destructive.option(parser)


def run(options: argparse.Namespace) -> int:
    (config, redis), path = shared(options.config), Path(options.file)
    folder = Path(config.batches.directory) if config.batches is not None and config.batches.directory else None
    try:
        made = _checked(redis, folder, path)
        entries = asyncio.run(_write_entries(config, redis, path, made, options))
        files = _write_files(folder, path) if folder is not None else 0
    except (EOFError, ValueError, LookupError, msgspec.MsgspecError, tarfile.TarError, zlib.error, OSError) as error:
        raise CommandError(f"{path} cannot be restored: {error}", 1) from None
    print(f"{entries} entries of Redis, {files} files of batches, of {made}")
    return 0


def _members(path: Path, step: str) -> Iterator[Member]:
    """The members behind the head, which is checked. Reads the file to its end, where the sum of all bytes is. step:
    the work that is done with them. Raises CommandError, and what Python raises for a file that is cut or is something
    else."""
    whole = path.stat().st_size
    with (
        Progress() as progress,
        open(path, "rb") as raw,
        gzip.open(raw) as packed,
        tarfile.open(fileobj=packed, mode="r:") as tar,
    ):
        for member in tar:
            progress.show(f"{step}: {share(raw.tell(), whole)}")
            if (content := tar.extractfile(member)) is None:
                raise ValueError(f"{member.name} is not a file")
            yield member, content
        while packed.read(1 << 20):
            pass


def _checked(redis: Redis, folder: Path | None, path: Path) -> str:
    """When the backup was made. Raises CommandError if it does not fit, and as `_members`."""
    members = _members(path, "checked")
    first, content = next(members, (None, None))
    if first is None or content is None or first.name != HEAD:
        raise ValueError("it is not a backup of Dragoman")
    head = _head.decode(content.read())
    if head.format != FORMAT:
        raise CommandError(f"{path} is from Dragoman {head.version}, which this version cannot read", 1)
    if head.namespace != redis.namespace:
        raise CommandError(f"{path} is of redis.namespace {head.namespace}; the configuration has another", 1)
    for member, content in members:
        if member.name.startswith("redis/"):
            _entries.decode(content.read())
        elif not _FILE.fullmatch(member.name):
            raise ValueError(f"{member.name} is not of a backup")
        elif folder is None:
            raise CommandError(f"{path} has files of batches; the configuration has no batches.directory", 1)
    return datetime.fromtimestamp(head.made, UTC).isoformat(timespec="seconds")


async def _write_entries(config: Config, redis: Redis, path: Path, made: str, options: argparse.Namespace) -> int:
    """Returns their number. Raises CommandError, OSError."""
    count = 0
    async with Server(redis) as server:
        there = [kind async for page in server.pages() for _, kind in page]
        if now := sum(kind.saved for kind in there):
            what = f"{now} entries of Redis are dropped for those of {made}, for which gateways must be stopped"
            # Gateways with limits write it, and Redis forgets it some seconds after the last one.
            if HEARTBEATS in there:
                what += "; one runs, or ran some seconds ago"
            destructive.confirm(what, options)
        await _note(config, path)
        async for page in server.saved():
            await server.drop(page)
        for member, content in _members(path, "entries of Redis"):
            if member.name.startswith("redis/"):
                await server.write(some := _entries.decode(content.read()))
                count += len(some)
    await _note(config, path)  # the record that was there is replaced, too
    return count


async def _note(config: Config, path: Path) -> None:
    if config.keys_store is not None:
        await destructive.note(config, "restore", path.name, None, ())


def _write_files(folder: Path, path: Path) -> int:
    """Returns their number. Raises OSError."""
    count = 0
    for member, content in _members(path, "files of batches"):
        if found := _FILE.fullmatch(member.name):
            _put(folder / found[1], member, content)
            count += 1
    return count


def _put(path: Path, member: tarfile.TarInfo, content: IO[bytes]) -> None:
    """Keeps the file's time, by which gateways find what is left over."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = f"{path}{PART}"
    with open(part, "wb") as file:
        shutil.copyfileobj(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.utime(part, (member.mtime, member.mtime))
    os.replace(part, path)
