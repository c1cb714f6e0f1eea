"""Gateways of 0.1.0 and of this version on one Redis, with one worker. `make test-upgrade` installs 0.1.0."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import httpx

from gateway.auth import new_secret
from tests.repo.tree import ROOT
from tests.support.commands import CLEAN, Serving
from tests.support.harness import Stack
from tests.support.redis_server import Server

HOME = ROOT / ".venv-0.1.0"
LIMIT = 60
TOKENS = 10**6
PLACES = 4
CLIENTS = 2
"""At once: the place of a request that has ended may be taken for a moment."""
LENGTH = 12
"""Tokens of a reply."""
Version = Literal["old", "new"]


def earlier(*words: str) -> str:
    """What `dragoman` of 0.1.0 prints."""
    done = subprocess.run([HOME / "bin" / "dragoman", *words], cwd=HOME, env=CLEAN, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


class Earlier(Serving):
    """`dragoman serve` of 0.1.0."""

    python = HOME / "bin" / "python"
    folder = HOME


class Caller:
    """A client of either version, with a key and limits of its own."""

    def __init__(self, name: str, team: str | None) -> None:
        self.name, self.team = name, team
        self.key, _, self._hash = new_secret()

    @property
    def entry(self) -> dict[str, Any]:
        """Of the configuration."""
        return {"hash": self._hash, **({"team": self.team} if self.team else {})}

    def ask(self, serving: Serving, path: str, body: Mapping[str, Any] | None = None, **more: Any) -> httpx.Response:
        """A POST, or a GET without a body."""
        method = more.pop("method", "POST" if body is not None or more else "GET")
        headers = {"authorization": f"Bearer {self.key}"}
        return httpx.request(method, serving.url + "/v1" + path, json=body, headers=headers, timeout=60, **more)

    def chat(self, serving: Serving, **more: Any) -> httpx.Response:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": LENGTH, **more}
        return self.ask(serving, "/chat/completions", body)

    def respond(self, serving: Serving, **more: Any) -> httpx.Response:
        return self.ask(serving, "/responses", {"model": "m", "input": "hi", "max_output_tokens": LENGTH, **more})


class Site:
    """One Redis, and the gateways on it. limit: of each key's requests; notice_s: how long a gateway that ends still
    takes requests."""

    def __init__(self, folder: Path, worker: Stack, limit: int = LIMIT, notice_s: float = 0) -> None:
        self._folder = folder
        self._worker = worker
        self._limit = limit
        self._notice_s = notice_s
        self._started: list[Serving] = []
        self.callers: dict[str, Caller] = {}
        (folder / "redis").mkdir()
        self.server = Server(folder / "redis")

    def __enter__(self) -> Self:
        self.server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for serving in self._started:
            serving.close()
        self.server.__exit__()

    def caller(self, name: str, team: str | None = None) -> Caller:
        """For the gateways that are started later."""
        return self.callers.setdefault(name, Caller(name, team))

    @property
    def sections(self) -> dict[str, Any]:
        """A configuration that both versions read."""
        return {
            "keys": {name: one.entry for name, one in self.callers.items()},
            "redis": {"addresses": [self.server.address], "timeout_s": 10},
            "models": {
                **{name: {"backend": "vllm", "discover": {"redis": True}} for name in ("of-old", "of-new")},
                **{
                    name: {"backend": "vllm", "upstream_model": "sim", "workers": [sim.url]}
                    for name, sim in zip(("m", "slow"), self._worker.sims, strict=True)
                },
            },
            "store": {"where": "redis"},
            "relay": {"notice_s": self._notice_s},
            "accounting": {"redis_stream": "usage"},
            "limits": [
                {"name": "few", "kind": "requests", "limit": self._limit, "per_s": 86400},
                {"name": "tokens", "kind": "tokens", "limit": TOKENS, "per_s": 86400},
                {"name": "running", "kind": "concurrency", "limit": PLACES},
            ],
        }

    def start(self, *versions: Version, **more: Any) -> list[Serving]:
        """A gateway of each version, once all of them listen. more: sections that only new ones read."""
        found: list[Serving] = []
        for version in versions:
            folder = self._folder / f"{version}{len(self._started)}"
            folder.mkdir()
            one = Earlier(folder, self.sections) if version == "old" else Serving(folder, {**self.sections, **more})
            self._started.append(one)
            found.append(one)
        for one in found:
            one.listening()
            one.admin = one.lines[-1].get("metrics", "")
        return found

    def recorded(self) -> list[str]:
        """The ids of requests to a model in the streams of both versions."""
        streams = [self.server.command("XRANGE", name, "-", "+") for name in ("usage", "dragoman:usage")]
        records = [json.loads(fields[b"record"]) for entries in streams for _, fields in entries]
        return [one["id"] for one in records if one.get("model")]


def stop(serving: Serving) -> None:
    serving.process.terminate()
    status, errors = serving.end()
    assert status == 0, errors


def remaining(answer: httpx.Response) -> int:
    """Requests that the limit leaves."""
    assert answer.status_code == 200, answer.text
    return int(answer.headers["x-ratelimit-remaining-requests"])


def used(table: str, limit: str) -> int:
    """What `dragoman limits show` has in the column `used`, behind two words of the column `of`."""
    return next(int(line.split()[3]) for line in table.splitlines() if line.startswith(limit))
