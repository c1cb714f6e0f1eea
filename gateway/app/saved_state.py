"""Knowledge of the last process, kept in a folder: workers, the store's teams and keys, an identity provider's keys.

A gateway that restarts while Redis, a name server or the provider is away begins with it, as one goes on that has lost
them while it ran: probes judge the workers, and keys hold for `stored_keys.hold_s`. The files hold no secret: of a key
its SHA-256. A file that somebody else may write to is not read.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gateway.auth.key_store import decoded, decoded_team, encoded
from gateway.background import cancel_tasks, keep_running
from gateway.config import Config
from gateway.fleet.discovery import Fleet, FoundWorker

if TYPE_CHECKING:
    from gateway.app.deployment import Deployment

_EVERY_S = 5.0
_FRESH_S = 60.0
"""After so long a file is marked as still true, although nothing has changed."""
_OLDEST_S = 86_400.0
"""Workers, and an identity provider's keys, that were read longer ago are forgotten."""
_READ_S = 5.0
_MOST_BYTES = 1 << 26
_WORKERS, _TEAMS, _KEYS, _TOKENS = "workers", "teams", "keys", "tokens"


class SavedFleet(msgspec.Struct, frozen=True):
    """A model's workers by one source, read at `at` in Unix seconds; serves: what the workers call the model."""

    source: str
    model: str
    serves: str
    at: float
    workers: list[FoundWorker]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(SavedFleet).decode


class SavedState:
    """Keeps the knowledge of this process in a folder, and gives it to the next one.

    deployment: returns the one in force. log: called with a level, an event and facts."""

    def __init__(self, deployment: Callable[[], Deployment], log: Callable[..., None]) -> None:
        self._deployment = deployment
        self._log = log
        self._at: dict[str, float] = {}
        self._saved: dict[str, tuple[object, float]] = {}
        self._trouble = ""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Gives the deployment, which has not started yet, what the process before knew; then keeps what it knows."""
        config = self._deployment().config
        if (folder := config.start.known_folder) is not None:
            known = (_WORKERS, self._workers), (_TEAMS, self._teams), (_KEYS, self._keys), (_TOKENS, self._tokens)
            for name, restore in known:
                try:
                    async with asyncio.timeout(_READ_S):  # a mounted folder may answer never
                        at, lines = await asyncio.to_thread(_read, _file(folder, config, name))
                    restore(at, lines)
                except (OSError, ValueError, msgspec.MsgspecError) as error:
                    self._log("warning", f"known {name} could not be read", folder=folder, reason=_why(error))
        self._task = asyncio.create_task(self._keep())

    def _workers(self, at: float, lines: list[bytes]) -> None:
        models, found = self._deployment().config.models, dict[str, Fleet]()
        for one in map(_decode, lines):
            options = models.get(one.model)
            if options is None or options.discover is None or one.serves != options.served_name(one.model):
                continue
            if time.time() - one.at < _OLDEST_S:
                found.setdefault(one.source, {})[one.model] = one.workers
                self._at[one.source] = one.at
        self._deployment().fleets.known = found

    def _teams(self, at: float, lines: list[bytes]) -> None:
        if (mirror := self._deployment().services.keys) is not None:
            mirror.restore_teams([team for team in map(decoded_team, lines) if team is not None])

    def _keys(self, at: float, lines: list[bytes]) -> None:
        if (mirror := self._deployment().services.keys) is not None and lines:
            keys = [key for key in map(decoded, lines) if key is not None]
            mirror.restore(keys, max(0.0, time.time() - at))

    def _tokens(self, at: float, lines: list[bytes]) -> None:
        if (tokens := self._deployment().services.tokens) is not None and lines and time.time() - at < _OLDEST_S:
            tokens.restore(b"\n".join(lines))

    # -- keeping ----------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            with keep_running("what is known"):
                await self.save()

    async def save(self) -> None:
        """Writes what has changed. A file is whole or not written."""
        deployment = self._deployment()
        config, services = deployment.config, deployment.services
        if config.start.known_folder is None:
            return
        now, trouble = time.time(), ""
        fleets = self._fleets(deployment)
        jobs: list[tuple[str, object, float, Callable[[], Iterable[bytes]]]] = []
        if fleets:
            found = [(one.source, one.model, one.workers) for one in fleets]
            jobs.append((_WORKERS, found, now, lambda: map(_encode, fleets)))
        if (mirror := services.keys) is not None and not mirror.unread:
            keys, teams = list(mirror.keys.values()), list(mirror.teams.values())
            jobs.append((_TEAMS, (id(mirror), mirror.changes), now - mirror.age_s, lambda: map(encoded, teams)))
            jobs.append((_KEYS, (id(mirror), mirror.changes), now - mirror.age_s, lambda: map(encoded, keys)))
        if (tokens := services.tokens) is not None and (body := tokens.body):
            jobs.append((_TOKENS, body, now, lambda: body.split(b"\n")))
        for name, state, at, lines in jobs:
            saved, saved_at = self._saved.get(name, (None, 0.0))
            if state == saved and at - saved_at < _FRESH_S:
                continue
            try:
                await asyncio.to_thread(_write, _file(config.start.known_folder, config, name), at, lines())
                self._saved[name] = (state, at)
            except OSError as error:
                trouble = _why(error)
        if trouble != self._trouble:
            self._log(
                "warning" if trouble else "info",
                "what is known cannot be kept" if trouble else "what is known is kept",
                folder=config.start.known_folder,
                reason=trouble,
            )
        self._trouble = trouble

    def _fleets(self, deployment: Deployment) -> list[SavedFleet]:
        discovery, models = deployment.fleets.discovery, deployment.config.models
        if discovery is None:
            return []
        self._at |= discovery.read_at
        return [
            SavedFleet(source, model, models[model].served_name(model), self._at[source], list(workers))
            for source, fleet in discovery.read.items()
            for model, workers in fleet.items()
            if source in self._at and model in models
        ]

    async def close(self) -> None:
        if self._task is not None:
            await cancel_tasks(self._task)
            with keep_running("what is known"):
                await self.save()


def _file(folder: str, config: Config, name: str) -> Path:
    """Deployments on other servers have other files, so that none takes over what another one knew."""
    redis, jwt = config.redis, config.jwt
    origin: object = None
    if name == _TOKENS:
        origin = None if jwt is None else jwt.jwks_url
    elif redis is not None:
        origin = redis.database
    return Path(folder, f"{name}-{sha256(repr(origin).encode()).hexdigest()[:12]}.jsonl")


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _read(file: Path) -> tuple[float, list[bytes]]:
    """When what is in the file was true, and its lines; none of a file that is not there. Raises OSError, and
    ValueError for a file that is not to be relied on."""
    try:
        with file.open("rb") as opened:
            about = os.fstat(opened.fileno())
            if about.st_uid not in (os.geteuid(), 0) or about.st_mode & 0o022:
                raise ValueError("others may write to its files")
            if about.st_size > _MOST_BYTES:
                raise ValueError("a file is too large")
            return about.st_mtime, opened.read(_MOST_BYTES).splitlines()
    except FileNotFoundError:
        return 0.0, []


def _write(file: Path, at: float, lines: Iterable[bytes]) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = file.with_suffix(f".{os.getpid()}.new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as opened:
        for line in lines:
            opened.write(line + b"\n")
    os.utime(new, (at, at))
    new.replace(file)
