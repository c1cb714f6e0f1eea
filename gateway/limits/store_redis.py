"""Counters shared by replicas, in Redis (6.2 and later) or Valkey: single, behind Sentinel, or a Cluster.

This file holds what is redis-py's: connecting, running the script, telling apart what failed.
See `gateway.limits.batcher` for batching, deadlines and the breaker, and `docs/limits.md` for setting a server up.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from asyncio import Future, Task
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from msgspec import Struct
from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import NoScriptError

from gateway.limits.batch import ADMIT, LOOK, RENEW, RESET, SETTLE, frame
from gateway.limits.batcher import Batcher, Heard, Refused, Unsent
from gateway.limits.model import Plan, Verdict
from gateway.limits.plan import Layout
from gateway.limits.store import Settlement

SCRIPT = files(__package__).joinpath("admit.lua").read_text(encoding="utf-8")

_HEARTBEATS_KEPT = 3.5
"""A replica counts as gone after missing three heartbeats."""


class RedisSettings(Struct, frozen=True, kw_only=True):
    """Where the server is. Raises ValueError when that is unclear.

    addresses      host:port (IPv6 in brackets); one for a single server, all Sentinels, or some cluster nodes
    mode           how to read them
    sentinel_name  the name under which the Sentinels know the primary
    db             database number; not for a cluster
    username       ACL user, also for the Sentinels if `sentinel_auth`
    password       theirs, or
    password_file  the file that holds it, read at every connect, so that a rotated secret needs no restart
    tls            with ca_file to trust, cert_file and key_file to show
    timeout        the longest an admission waits for the server, in seconds
    """

    addresses: tuple[str, ...]
    mode: str = "single"
    sentinel_name: str = "mymaster"
    sentinel_auth: bool = False
    db: int = 0
    username: str | None = None
    password: str | None = None
    password_file: str | None = None
    tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    timeout: float = 0.05

    def __post_init__(self) -> None:
        if self.mode not in ("single", "sentinel", "cluster"):
            raise ValueError("redis mode must be single, sentinel or cluster")
        if not self.addresses or (self.mode == "single" and len(self.addresses) != 1):
            raise ValueError("redis needs one address, or those of its sentinels or cluster nodes")
        if self.mode == "cluster" and self.db:
            raise ValueError("a redis cluster has only database 0")
        if not 0.001 <= self.timeout <= 10:
            raise ValueError("redis timeout must be 0.001 to 10 seconds")
        for one in self.addresses:
            split_address(one)

    def __repr__(self) -> str:
        return f"RedisSettings({self.mode}, {', '.join(self.addresses)})"


def split_address(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 65_536 or not host:
        raise ValueError(f"redis address {address!r} is not host:port")
    return host.strip("[]"), int(port)


class _FromFile(CredentialProvider):
    def __init__(self, username: str | None, path: str) -> None:
        self._username = username
        self._path = Path(path)

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password = self._path.read_text(encoding="utf-8").rstrip("\r\n")
        return (self._username, password) if self._username else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """What the client asks for; the inherited one warns at every connect."""
        return self.get_credentials()


def connect(settings: RedisSettings) -> tuple[Any, list[Any]]:
    """A client without any retries of its own, and all that must be closed in the end. Does no I/O yet."""
    options: dict[str, Any] = {
        "protocol": 2,
        "socket_timeout": None,  # the lane has one deadline for all of a call
        "socket_connect_timeout": 1.0,
        "retry": Retry(NoBackoff(), 0),
        "driver_info": None,  # else CLIENT SETINFO at every connect, which an ACL need not allow
    }
    auth: dict[str, Any] = {}
    if settings.password_file is not None:
        auth["credential_provider"] = _FromFile(settings.username, settings.password_file)
    elif settings.username is not None or settings.password is not None:
        auth = {"username": settings.username, "password": settings.password}
    tls: dict[str, Any] = {}
    if settings.tls:
        tls = {
            "ssl": True,
            "ssl_ca_certs": settings.ca_file,
            "ssl_certfile": settings.cert_file,
            "ssl_keyfile": settings.key_file,
        }
    nodes = [split_address(one) for one in settings.addresses]
    if settings.mode == "cluster":
        cluster = RedisCluster(startup_nodes=[ClusterNode(*node) for node in nodes], **options, **auth, **tls)
        return cluster, [cluster]
    if settings.mode == "sentinel":
        asking = {**options, **tls, **(auth if settings.sentinel_auth else {})}
        # Sentinels are asked only while connecting, and one of them may be the machine that just died.
        asking["socket_timeout"] = 0.3
        sentinel = Sentinel(nodes, sentinel_kwargs=asking)  # type: ignore[no-untyped-call]
        primary = sentinel.master_for(settings.sentinel_name, db=settings.db, **options, **auth, **tls)
        return primary, [primary, *sentinel.sentinels]
    host, port = nodes[0]
    single = Redis(host=host, port=port, db=settings.db, **options, **auth, **tls)
    return single, [single]


class RedisStore:
    """heartbeat is the seconds between two calls of `beat`; expected is how many replicas to assume before the first
    heartbeat was answered. script is replaced by tests that need a clock of their own."""

    def __init__(
        self,
        settings: RedisSettings,
        *,
        layout: Layout | None = None,
        expected: int = 1,
        heartbeat: float = 5.0,
        script: str = SCRIPT,
    ) -> None:
        self.layout = layout or Layout()
        self.up = False
        self.reason = "not started"
        self.replicas = max(expected, 1)
        self.changed: Callable[[bool, str], None] | None = None
        self._settings = settings
        self._heartbeat = heartbeat
        self._script = script.encode()
        self._sha = hashlib.sha1(self._script, usedforsecurity=False).hexdigest().encode()
        self._me = secrets.token_hex(6)
        self._client: Any = None
        self._to_close: list[Any] = []
        self._batchers: list[Batcher] = []
        self._links: list[_Link | _ClusterLink] = []
        self._started = False

    def admit(self, plan: Plan, costs: Sequence[int], lease: str) -> Future[Verdict]:
        return self._batchers[plan.tag].ask(ADMIT, plan, costs, lease)

    def settle(self, plan: Plan, lease: str, settlements: Sequence[Settlement]) -> None:
        self._batchers[plan.tag].tell(SETTLE, plan, settlements, lease)

    def renew(self, leases: Sequence[tuple[str, Plan]]) -> None:
        for lease, plan in leases:
            self._batchers[plan.tag].tell(RENEW, plan, plan.slots, lease)

    async def look(self, plan: Plan) -> Verdict:
        return await self._batchers[plan.tag].ask(LOOK, plan, ())

    async def reset(self, plan: Plan) -> None:
        await self._batchers[plan.tag].ask(RESET, plan, ())

    async def start(self, lease_ttl: float) -> None:
        self._client, self._to_close = connect(self._settings)
        for tag in range(self.layout.partitions):
            key = self.layout.key(tag, "replicas")
            beat_ttl = _HEARTBEATS_KEPT * self._heartbeat
            link: _Link | _ClusterLink
            if self._settings.mode == "cluster":
                link = _ClusterLink(self._client, self._script, self._sha)
            else:
                link = _Link(self._client.connection_pool, self._script, self._sha)
            self._links.append(link)
            batcher = Batcher(link, key, self._me, self._settings.timeout, beat_ttl, self._lane_changed)
            batcher.lease_ttl = round(lease_ttl * 1_000_000)
            self._batchers.append(batcher)
        await asyncio.gather(*(batcher.start() for batcher in self._batchers))
        self._started = True
        self._lane_changed()

    async def beat(self) -> None:
        await asyncio.gather(*(batcher.beat() for batcher in self._batchers))
        self._count()

    async def flush(self) -> None:
        for batcher in self._batchers:
            await batcher.flush()

    async def close(self) -> None:
        for batcher in self._batchers:
            await batcher.close()
        self.up, self.reason = False, "closed"
        for link in self._links:
            await link.release()
        for client in self._to_close:
            with contextlib.suppress(Exception):
                await client.aclose()

    def _lane_changed(self) -> None:
        if not self._started:
            return
        down = next((batcher for batcher in self._batchers if not batcher.up), None)
        up, reason = down is None, down.reason if down is not None else ""
        self._count()
        if up != self.up or self.reason == "not started":
            self.up, self.reason = up, reason
            if self.changed is not None:
                self.changed(up, reason)

    def _count(self) -> None:
        known = [batcher.replicas for batcher in self._batchers if batcher.up]
        if known:
            self.replicas = max(known)


class _Link(asyncio.Protocol):
    """One lane's connection to one server. The client connects and says who we are; from then on bytes are written and
    read here: its `execute_command` costs as much as all the rest of a call, and hides whether anything was sent."""

    def __init__(self, pool: Any, script: bytes, sha: bytes) -> None:
        self._pool = pool
        self._script = script
        self._sha = sha
        self._connection: Any = None
        self._connecting: Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._clients: asyncio.BaseProtocol | None = None
        self._asked: tuple[Sequence[bytes], bytes] = ((), b"")
        self._heard: Heard | None = None
        self._piece = b""

    def call(self, keys: Sequence[bytes], payload: bytes, heard: Heard) -> None:
        self._asked = keys, payload
        self._heard = heard
        if self._transport is not None:
            self._write(self._transport, b"EVALSHA", self._sha)
        else:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())

    def drop(self) -> None:
        self._heard = None
        if self._connecting is not None:
            self._connecting.cancel()
        self._hang_up()

    async def release(self) -> None:
        """Closes the connection and gives it back to the client's pool."""
        self._hang_up()
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)
            await self._pool.release(connection)

    async def _connect(self) -> None:
        try:
            await self.release()
            self._connection = connection = await self._pool.get_connection()
        except Exception as error:
            unsent = Unsent()
            unsent.__cause__ = error
            self._tell(unsent)
            return
        finally:
            if self._connecting is asyncio.current_task():
                self._connecting = None
        # The client has read every answer to what it said, so its own reader misses nothing.
        self._transport = transport = connection._writer.transport
        self._clients = transport.get_protocol()
        transport.set_protocol(self)
        self._write(transport, b"EVALSHA", self._sha)

    def _write(self, transport: asyncio.Transport, command: bytes, script: bytes) -> None:
        keys, payload = self._asked
        transport.write(frame((command, script, b"%d" % len(keys), *keys, payload)))

    def data_received(self, data: bytes) -> None:
        """A bulk string, `$<bytes>\\r\\n...\\r\\n`, or an error, `-<CODE> <text>\\r\\n`, in one or more pieces."""
        if self._piece:
            data = self._piece + data
        line = data.find(b"\r\n")
        if line < 0:
            self._piece = data
        elif data.startswith(b"$"):
            end = line + 2 + int(data[1:line])
            if len(data) < end + 2:
                self._piece = data
            else:
                self._piece = b""
                self._tell(data[line + 2 : end])
        elif data.startswith(b"-NOSCRIPT") and self._transport is not None:  # it did not run, so this is no retry
            self._piece = b""
            self._write(self._transport, b"EVAL", self._script)
        else:  # not what a healthy primary says: start afresh
            self._hang_up()
            error = data[1:line].decode(errors="replace") if data.startswith(b"-") else "not a Redis server's answer"
            self._tell(Refused(error))

    def eof_received(self) -> None:
        self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._hang_up()
        self._tell(exc or ConnectionResetError("the server closed the connection"))

    def _hang_up(self) -> None:
        transport, self._transport = self._transport, None
        self._piece = b""
        if transport is not None:
            assert self._clients is not None
            transport.set_protocol(self._clients)  # its end is no longer our business: another may be open by then
            transport.abort()

    def _tell(self, what: bytes | Exception) -> None:
        heard, self._heard = self._heard, None
        if heard is not None:
            heard(what)


class _ClusterLink:
    """The same for a cluster, whose client finds the node."""

    def __init__(self, client: Any, script: bytes, sha: bytes) -> None:
        self._client = client
        self._script = script
        self._sha = sha
        self._call: Task[None] | None = None

    def call(self, keys: Sequence[bytes], payload: bytes, heard: Heard) -> None:
        self._call = asyncio.get_running_loop().create_task(self._run(keys, payload, heard))

    def drop(self) -> None:
        if self._call is not None:
            self._call.cancel()

    async def release(self) -> None:
        return None

    async def _run(self, keys: Sequence[bytes], payload: bytes, heard: Heard) -> None:
        try:
            try:
                answer = await self._client.execute_command("EVALSHA", self._sha, len(keys), *keys, payload)
            except NoScriptError:  # it did not run, so this is no retry
                answer = await self._client.execute_command("EVAL", self._script, len(keys), *keys, payload)
        except Exception as error:
            answer = error
        self._call = None
        heard(answer)


__all__ = ["SCRIPT", "RedisSettings", "RedisStore", "connect"]
