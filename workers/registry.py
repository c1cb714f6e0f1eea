"""A worker's entry in the fleet's registry: a record with a lease in Redis, renewed with the worker's load.

The format is documented in docs/workers.md ("The registry"); the gateway reads it in `gateway/fleet/registry.py`.
Losing Redis never disturbs the worker: it goes on serving and tries again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import secrets
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

NAMESPACE = "dragoman"
FORMAT = 1
RENEW_S = 0.5
LEASE_S = 6.0
NOTICE_S = 2.0
"""Seconds after which every gateway has read a changed record."""
HAND_OVER_S = 10.0
"""Most replies end by themselves in this time; the others cost another worker their prompt once more."""
Load = Callable[[], Awaitable[tuple[int, int]]]
"""Returns how many requests run and wait."""
_CALL_S = 1.0
_LOOKS = 4
"""Looks at the load that fit into a lease."""
_NAMESPACE = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_SWEPT = 100
"""Ids of the index that a renewal looks at, a new sample each time."""
_SWEEP = """
for _, id in ipairs(redis.call('SRANDMEMBER', KEYS[1], ARGV[1])) do
  if redis.call('EXISTS', KEYS[1] .. ':' .. id) == 0 then redis.call('SREM', KEYS[1], id) end
end
"""
"""Removes ids without a record: those of workers that were killed. A worker whose record is only late adds its id again
with the next renewal. None of the ids leaves Redis, whatever their number."""


def index_of(namespace: str) -> str:
    """The key of the set of all ids. The braces put the records into the same slot of a cluster."""
    return f"{{{namespace}-workers}}"


@dataclass
class WorkerEntry:
    """The record of one worker; its load changes while it runs.

    draining  it takes no new requests
    leaving   gateways should move its requests to other workers
    until     when it ends at the latest, in Unix seconds, once it drains; for people
    """

    address: str
    models: tuple[str, ...]
    engine: str
    version: str = ""
    max_model_len: int | None = None
    capacity: int | None = None
    abilities: dict[str, bool] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    draining: bool = False
    leaving: bool = False
    until: int | None = None
    load: dict[str, int] = field(default_factory=lambda: {"running": 0, "waiting": 0})
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    started: int = field(default_factory=lambda: int(time.time()))

    def text(self) -> str:
        """The record as JSON."""
        return json.dumps({"format": FORMAT, **asdict(self)}, separators=(",", ":"))


class Registry:
    """The registry, by its address. Raises ValueError for an invalid one.

    url            redis://host:port[/db], or rediss:// for TLS; it may hold a user name, but no password
    password_file  read at every connect
    ca_file        PEM bundle that the server's certificate must chain to (rediss)
    namespace      `redis.namespace` of the gateways
    """

    def __init__(
        self, url: str, password_file: str | None = None, ca_file: str | None = None, namespace: str = NAMESPACE
    ) -> None:
        if not _NAMESPACE.fullmatch(namespace):
            raise ValueError("--namespace must be 1 to 128 letters, digits, '_', '.' or '-'")
        self.index = index_of(namespace)
        parts = urlsplit(url)
        if parts.scheme not in ("redis", "rediss") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("--register needs redis://host:port[/db] or rediss://host:port[/db]")
        if parts.password is not None:
            raise ValueError("--register must hold no password: use --redis-password-file")
        self.host, self.port = parts.hostname, parts.port or 6379
        database = parts.path.strip("/") or "0"
        if not database.isdigit():
            raise ValueError("--register: the path of the address must be the number of a database")
        self.db = int(database)
        self.tls = parts.scheme == "rediss"
        self.username = parts.username
        self.password_file = password_file
        self.ca_file = ca_file

    def connect(self) -> Redis:
        """A client without retries of its own. Raises OSError when the password cannot be read."""
        options: dict[str, Any] = {}
        if self.tls:
            options = {"ssl": True, "ssl_ca_certs": self.ca_file}
        if self.password_file is not None:
            options["password"] = Path(self.password_file).read_text(encoding="utf-8").strip()
        return Redis(
            host=self.host,
            port=self.port,
            db=self.db,
            username=self.username,
            protocol=2,
            socket_timeout=_CALL_S,
            socket_connect_timeout=_CALL_S,
            retry=Retry(NoBackoff(), 0),
            driver_info=None,  # else CLIENT SETINFO at every connect, which an ACL need not allow
            **options,
        )

    def own_address(self) -> str:
        """The address of this machine as seen on the way to the registry. Raises OSError."""
        family, kind, _, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])


class Lease:
    """Keeps one record alive. Call `join`, then `leave` once.

    look  updates the running and waiting requests before each renewal; if it raises or takes long, they stay unchanged
    """

    def __init__(
        self,
        registry: Registry,
        record: WorkerEntry,
        look: Load,
        *,
        lease_s: float = LEASE_S,
        renew_s: float = RENEW_S,
        log: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
    ) -> None:
        self._registry = registry
        self.record = record
        self._look = look
        self._lease_ms = int(lease_s * 1000)
        self._renew_s = renew_s
        self._log = log
        self._client: Redis | None = None
        self._task: asyncio.Task[None] | None = None
        self._lost = False
        self._leaving = False
        self._writing = asyncio.Lock()

    async def join(self) -> None:
        await self.write()
        self._task = asyncio.create_task(self._renew())

    async def drain(self, grace_s: float) -> None:
        """Marks the record as draining: a gateway that has read it sends nothing new."""
        self.record.draining, self.record.until = True, int(time.time() + grace_s)
        await self.write()

    async def hand_over(self) -> None:
        """Marks the record as leaving: a gateway that has read it moves requests to other workers."""
        self.record.leaving = True
        await self.write()

    async def leave(self) -> None:
        """Deletes the record. If the registry cannot be reached, the record expires with its lease."""
        # redis-py may swallow the cancellation: it calls wait_for, which does so before Python 3.12.
        self._leaving = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        async with self._writing:
            await self._try(self._remove)
            await self._forget()

    async def write(self) -> bool:
        """Writes the record now. False if the registry cannot be reached."""
        async with self._writing:
            return await self._try(self._write)

    async def _renew(self) -> None:
        while not self._leaving:
            await asyncio.sleep(self._renew_s)
            # An engine that is slow to report its load does not delay the lease, and no error whatever may end this:
            # the worker would be lost to the fleet while it serves.
            with contextlib.suppress(Exception):
                async with asyncio.timeout(self._lease_ms / 1000 / _LOOKS):
                    running, waiting = await self._look()
                self.record.load = {"running": running, "waiting": waiting}
            await self.write()

    async def _try(self, job: Callable[[Redis], Awaitable[None]]) -> bool:
        try:
            if self._client is None:
                self._client = self._registry.connect()
            await job(self._client)
        except Exception as error:  # whatever it is, the worker serves on, and the next renewal tries again
            if not self._lost:
                self._log(f"registry lost, trying on: {type(error).__name__}")
            self._lost = True
            await self._forget()  # the next try reads the password again
            return False
        if self._lost:
            self._log("registry found again")
        self._lost = False
        return True

    async def _forget(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(RedisError, OSError):
                await client.aclose()

    @property
    def _key(self) -> str:
        return f"{self._registry.index}:{self.record.id}"

    async def _write(self, client: Redis) -> None:
        async with client.pipeline(transaction=False) as pipe:
            pipe.set(self._key, self.record.text(), px=self._lease_ms)
            pipe.sadd(self._registry.index, self.record.id)
            await pipe.execute()
        with contextlib.suppress(ResponseError):  # a user that may not do so registers all the same
            await client.eval(_SWEEP, 1, self._registry.index, _SWEPT)

    async def _remove(self, client: Redis) -> None:
        async with client.pipeline(transaction=False) as pipe:
            pipe.delete(self._key)
            pipe.srem(self._registry.index, self.record.id)
            await pipe.execute()


async def until_stopped(entry: WorkerEntry, given: argparse.Namespace, registry: Registry | None, load: Load) -> None:
    """From when a worker listens at the address of `entry` until it may end: after a signal, and the drain if it
    registers. Raises OSError or ValueError if it has no address to register."""
    stop, hurry = ending()
    here, lease = entry.address, None
    if registry is not None:
        parts = urlsplit(here)
        entry.address = advertised(given, registry, parts.scheme, parts.hostname or "", parts.port or 0)
        lease = Lease(registry, entry, load, lease_s=given.lease)
        await lease.join()
    print(f"listening on {here}", flush=True)
    await stop.wait()
    if lease is not None:
        await wind_down(lease, load, grace_s=given.grace, hand_over_s=given.hand_over, hurry=hurry)
        await lease.leave()


async def wind_down(
    lease: Lease | None,
    load: Load,
    *,
    grace_s: float,
    hand_over_s: float,
    hurry: asyncio.Event,
    notice_s: float = NOTICE_S,
) -> bool:
    """Drains: marks the record, then waits up to `grace_s` seconds for the running requests. After `hand_over_s`, or at
    half of the grace, gateways move those that other workers can continue; the others stay. False if some were still
    running at the end.

    load   running and waiting requests; if it raises, or takes long, they are unknown and asked for again
    hurry  ends the wait at once
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    end, moved = began + grace_s, began + min(hand_over_s, grace_s / 2)
    if lease is not None:
        await lease.drain(grace_s)
        if await _set_within(hurry, min(notice_s, grace_s)):
            return False
    while True:
        # A busy engine that reports late, or once not at all, must not be stopped for it.
        with contextlib.suppress(Exception):
            async with asyncio.timeout_at(max(end, loop.time() + _CALL_S)):
                if not any(await load()):
                    return True
        now = loop.time()
        if lease is not None and not lease.record.leaving and now >= moved:
            await lease.hand_over()
        left = end - now
        if left <= 0 or await _set_within(hurry, min(0.2, left)):
            return False


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def ending() -> tuple[asyncio.Event, asyncio.Event]:
    """Two events of this process: the first SIGTERM or SIGINT (drain), and the next one (hurry)."""
    stop, hurry = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):  # on Windows
            asyncio.get_running_loop().add_signal_handler(number, lambda: (hurry if stop.is_set() else stop).set())
    return stop, hurry


def add_flags(out: argparse.ArgumentParser) -> None:
    """The flags of a worker that can register."""
    add = out.add_argument
    add("--register", metavar="URL", help="registry to join: redis://host:port[/db], rediss://... (none)")
    add("--redis-password-file", metavar="FILE", help="file with the registry's password")
    add("--redis-ca-file", metavar="FILE", help="PEM bundle for a rediss:// registry")
    add("--namespace", default=NAMESPACE, help="`redis.namespace` of the gateways (%(default)s)")
    add("--advertise", metavar="URL", help="address for the gateways to call (this machine's, as the registry sees it)")
    add("--grace", type=float, default=120.0, help="seconds that running requests get on SIGTERM (%(default)g)")
    add(
        "--hand-over",
        type=float,
        default=HAND_OVER_S,
        help="seconds on SIGTERM until gateways move running requests to other workers, at most half of --grace; needs "
        "--register (%(default)g)",
    )
    add("--lease", type=float, default=LEASE_S, help="seconds after which a silent worker's entry ends (%(default)g)")


def registry_of(given: argparse.Namespace) -> Registry | None:
    """The registry to join, or None. Raises ValueError."""
    if given.register is None:
        return None
    if given.lease < 2 * RENEW_S:
        raise ValueError(f"--lease must be at least {2 * RENEW_S:g}")
    for name in (given.redis_password_file, given.redis_ca_file):
        if name is not None and not os.access(name, os.R_OK):
            raise ValueError(f"cannot read {name}")
    return Registry(given.register, given.redis_password_file, given.redis_ca_file, given.namespace)


def advertised(given: argparse.Namespace, registry: Registry, scheme: str, host: str, port: int) -> str:
    """The address to register. Raises ValueError or OSError when there is none that others could reach."""
    if given.advertise is not None:
        parts = urlsplit(given.advertise)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
            raise ValueError("--advertise needs http://host:port or https://host:port")
        return str(given.advertise).rstrip("/")
    if host in ("", "0.0.0.0", "::"):
        host = registry.own_address()
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
