"""`dragoman backup`: what gateways keep in Redis and in the folder of batches, as one file for `dragoman restore`.

The file is a gzipped tar. Its first member is `dragoman-backup.json`, a `Head` as JSON. `redis/N` are entries of Redis:
a msgpack array of `Entry`. `files/XX/ID` is a file of the folder of batches, whose layout is that of the folder.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import os
import re
import tarfile
import time
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import msgspec
from msgspec import Struct

from gateway.app.key_kinds import key_kinds
from gateway.cli import CommandError, destructive
from gateway.cli.configured import FILE_HELP, configuration
from gateway.cli.progress import Progress
from gateway.config import Config, Redis
from gateway.core.key_kind import KeyKind
from gateway.redis import FAILURES, connect

FORMAT = 1
HEAD = "dragoman-backup.json"
PART = ".part"
"""Ends the name of a file that is being written."""
_CALL_S = 30.0
_AT_ONCE = 20
"""Entries that are asked for in one call, and that memory holds."""


class Head(Struct):
    """format: raised by a change that an earlier version cannot read; version: that of Dragoman; namespace:
    `redis.namespace`; made: Unix seconds."""

    format: int
    version: str
    namespace: str
    made: float


class Entry(Struct, array_like=True):
    """ends_ms: the Unix milliseconds at which Redis forgets it, 0 for never; dump: the answer of Redis' DUMP."""

    key: bytes
    ends_ms: int
    dump: bytes


ABOUT = (
    "Gateways may run meanwhile. Keep the file as you keep secrets: it has hashes of keys, and stored responses. "
    "Files of batches in a bucket are not in it."
)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the backup to write")
    parser.add_argument("--config", metavar="FILE", help=FILE_HELP)
    destructive.option(parser)


def run(options: argparse.Namespace) -> int:
    (config, redis), target = shared(options.config), Path(options.file)
    if target.exists():
        destructive.confirm(f"{target} is replaced", options)
    part = Path(f"{target}{PART}")
    try:
        part.unlink(missing_ok=True)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as raw:
            with tarfile.open(fileobj=raw, mode="w:gz", compresslevel=1) as tar, Progress() as progress:
                head = Head(FORMAT, version("dragoman"), redis.namespace, time.time())
                _add(tar, HEAD, msgspec.json.encode(head))
                # A file without its description is removed in time. A description without its file would be an error.
                entries = asyncio.run(_add_entries(redis, tar, progress))
                files = _add_files(config, tar, progress)
            raw.flush()
            os.fsync(raw.fileno())
        os.replace(part, target)
    except OSError as error:
        raise CommandError(f"{target} cannot be written: {error.strerror or error}", 1) from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    bucket = config.batches is not None and config.batches.bucket is not None
    print(f"{entries} entries of Redis, {files} files of batches{'; the bucket is not in it' if bucket else ''}")
    return 0


def shared(file: str | None) -> tuple[Config, Redis]:
    """The configuration, and its section redis. Raises CommandError, ConfigError."""
    config, _ = configuration(file, only=("redis",))
    if config.redis is None:
        raise CommandError("without a section redis, gateways keep nothing that a backup could hold")
    return config, config.redis


async def _add_entries(redis: Redis, tar: tarfile.TarFile, progress: Progress) -> int:
    """Returns their number. Raises CommandError, OSError."""
    count = 0
    async with Server(redis) as server:
        async for page in server.saved():
            entries = await server.read(page)
            _add(tar, f"redis/{count}", msgspec.msgpack.encode(entries))
            count += len(entries)
            progress.show(f"{count:,} entries of Redis")
    return count


def _add_files(config: Config, tar: tarfile.TarFile, progress: Progress) -> int:
    """Returns their number. Raises CommandError, OSError."""
    if config.batches is None or config.batches.directory is None:
        return 0
    folders = [one for one in _listed(Path(config.batches.directory)) if len(one.name) == 2 and one.is_dir()]
    paths = [one for folder in folders for one in _listed(folder) if one.suffix != PART]
    count = 0
    for at, path in enumerate(paths, 1):
        count += _add_file(tar, path)
        progress.show(f"{at:,} of {len(paths):,} files of batches")
    return count


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(content), 0o600, int(time.time())
    tar.addfile(member, io.BytesIO(content))


def _add_file(tar: tarfile.TarFile, path: Path) -> bool:
    """As much as it holds now, for it may grow. False if it is gone, as a file may be whose time is over. Raises
    CommandError if it cannot be read, OSError if the backup cannot be written."""
    with contextlib.ExitStack() as opened:
        try:
            file = opened.enter_context(open(path, "rb"))
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _unread(path, error) from None
        there = os.fstat(file.fileno())
        member = tarfile.TarInfo(f"files/{path.parent.name}/{path.name}")
        member.size, member.mode, member.mtime = there.st_size, 0o600, there.st_mtime
        tar.addfile(member, _Source(path, file))
    return True


def _listed(folder: Path) -> list[Path]:
    """Lists what is in `folder`. Raises CommandError; `Path.glob` would pass over a folder that cannot be read."""
    try:
        return [folder / name for name in sorted(os.listdir(folder))]
    except OSError as error:
        raise _unread(folder, error) from None


class _Source:
    """A file whose errors are other than those of the file that is written."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path, self._file = path, file

    def read(self, size: int = -1) -> bytes:
        try:
            return self._file.read(size)
        except OSError as error:
            raise _unread(self._path, error) from None


def _unread(path: Path, error: OSError) -> CommandError:
    return CommandError(f"{path} cannot be read: {error.strerror or error}", 1)


class Server:
    """Redis, for the length of a command. Each method raises CommandError if it does not answer as it should."""

    def __init__(self, settings: Redis) -> None:
        self._settings = settings

    async def __aenter__(self) -> Server:
        self._client = connect(self._settings)
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(*FAILURES):
            await self._client.aclose()

    async def pages(self) -> AsyncIterator[list[tuple[bytes, KeyKind]]]:
        """The keys that gateways write, some at a time. One that comes meanwhile may be left out."""
        kinds = [(re.compile(one.pattern(self._settings.namespace).encode()), one) for one in key_kinds()]
        page: list[tuple[bytes, KeyKind]] = []
        found = self._client.scan_iter(match=f"*{self._settings.namespace}*", count=1000)
        while True:
            async with _asked():
                key = await anext(found, None)
            if key is None or len(page) == _AT_ONCE:
                yield page
                page = []
            if key is None:
                return
            page += [(key, kind) for pattern, kind in kinds if pattern.fullmatch(key)][:1]

    async def saved(self) -> AsyncIterator[list[bytes]]:
        """The keys of `pages` that a backup holds."""
        async for page in self.pages():
            if keys := [key for key, kind in page if kind.saved]:
                yield keys

    async def read(self, keys: list[bytes]) -> list[Entry]:
        """Those of `keys` that are there."""
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.pttl(key)
            pipeline.dump(key)
        now = round(time.time() * 1000)
        found = await self._done(pipeline)
        entries = zip(keys, found[::2], found[1::2], strict=True)
        return [Entry(key, now + ms if ms > 0 else 0, dump) for key, ms, dump in entries if dump is not None]

    async def write(self, entries: list[Entry]) -> None:
        """Writes `entries`, but for those whose time is over."""
        pipeline = self._client.pipeline(transaction=False)
        now = round(time.time() * 1000)
        for one in entries:
            if not one.ends_ms or one.ends_ms > now:
                pipeline.restore(one.key, one.ends_ms, one.dump, replace=True, absttl=True)
        await self._done(pipeline)

    async def drop(self, keys: list[bytes]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.execute_command("UNLINK", key)  # `unlink` of a cluster's pipeline does nothing
        await self._done(pipeline)

    async def _done(self, pipeline: Any) -> list[Any]:
        async with _asked():
            return list(await pipeline.execute())


@contextlib.asynccontextmanager
async def _asked() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(_CALL_S):
            yield
    except FAILURES as error:
        raise CommandError(f"redis: {error or f'no answer in {_CALL_S:g} s'}", 1) from None
