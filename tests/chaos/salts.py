"""S7: what workers cache for one team tells another nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from gateway.auth import new_key
from tests.chaos.link import Link, request
from tests.chaos.row import FULL, SEED, Findings, row
from tests.support.clients import DIALECTS, WAYS, Way
from tests.support.harness import Stack

PROMPTS = 200 if FULL else 20
"""For each way of asking."""
TEAMS = {"a1": "a", "a2": "a", "b1": "b", "c1": "c", "alone": None}
SECRET = "canary-salt-" + "Hs4" * 10
WORDS = ["north", "south", "east", "west", "river", "bridge", "market", "garden", "window", "harbour", "letter"]

Asked = tuple[Way, bool]
"""A way to ask, and whether for a stream."""


def ways() -> list[Asked]:
    """Of every dialect: chats and completions, plain and streamed."""
    found = [(way, stream) for way in WAYS if way.operation in ("chat", "complete") for stream in (False, True)]
    return [(way, stream) for way, stream in found if way.answers(stream=stream)]


def asked(one: Asked, text: str, **members: Any) -> tuple[str, bytes]:
    way, stream = one
    body = way.body(text, stream=stream, model="m", max_tokens=2)
    return way.path(), json.dumps({**body, **members}).encode()


class Asking:
    """A gateway with one worker, asked by several keys; remembers all that clients were told."""

    def __init__(self, stack: Stack, keys: Mapping[str, str]) -> None:
        self.stack = stack
        self.told: list[str] = []
        self._keys = keys
        self._link = Link(stack.url.removeprefix("http://"))

    async def __call__(self, key: str, path: str, body: bytes) -> tuple[str | None, int]:
        """(the salt that the worker got, how many of the prompt's tokens it had cached)."""
        answer = await self._link.send(request("POST", path, {"api-key": self._keys[key]}, body))
        assert answer.status == 200, answer.body
        self.told.append(f"{answer.headers} {answer.body.decode('utf-8', 'replace')}")
        entry = self.stack.sim.entries[-1]
        return json.loads(entry.body).get("cache_salt"), entry.cached_tokens

    async def metrics(self) -> str:
        body = (await self._link.get("/metrics")).body.decode()
        self._link.close()
        return body


@row("S7", "equal prompts of several teams: salts, and what a worker has cached")
async def salts_differ(findings: Findings) -> None:
    """3 teams and a key without a team send equal prompts, 20 in each of 12 ways of asking, `FULL=1`: 200; then with
    salts of their own, also another team's.

    Passes if every request of a team has one salt, which no other team has. A prompt that only others had sent has
    no cached token; one that the team had sent has some. A client's own salt never equals another team's; no salt
    appears in log, metrics or answers.
    """
    keys: dict[str, str] = {}
    entries: dict[str, Any] = {}
    for name, team in TEAMS.items():
        keys[name], entry = new_key(name, team)
        entries |= yaml.safe_load(entry)
    config = {
        "keys": entries,
        "cache_salt": {"secret_env": "SALT"},
        "dialects": {dialect: {"default_model": "m", "extras": "pass"} for dialect in DIALECTS},
        "log": {"level": "debug"},
    }
    draw = random.Random(SEED)
    plan = ways() * PROMPTS
    draw.shuffle(plan)
    with Stack(({},), config, environ={"SALT": SECRET}) as stack:
        ask = Asking(stack, keys)
        salts = await equal_prompts(findings, ask, plan, draw)
        await own_salts(findings, ask, plan, salts)
        metrics = await ask.metrics()
    secret = [SECRET, *salts.values()]
    texts = [*stack.output.getvalue().decode().splitlines(), *metrics.splitlines(), *ask.told]
    shown = [text for text in texts if any(one in text for one in secret)]
    findings.none("salts in log, metrics and answers", len(shown), len(texts))


async def equal_prompts(findings: Findings, ask: Asking, plan: Sequence[Asked], draw: random.Random) -> dict[str, str]:
    """Every key sends every prompt. Returns the salt of each key."""
    seen: dict[str, set[str | None]] = {name: set() for name in TEAMS}
    first: list[int] = []
    own: list[int] = []
    for way in plan:
        text = " ".join(draw.choices(WORDS, k=200))
        met = set()
        for name in draw.sample(list(TEAMS), len(TEAMS)):
            salt, cached = await ask(name, *asked(way, text))
            seen[name].add(salt)
            team = TEAMS[name] or name
            (own if team in met else first).append(cached)
            met.add(team)
    count = len(first) + len(own)
    whole = sum(len(found) == 1 and None not in found for found in seen.values())
    findings.check("keys of which every request carries the one salt, of 5", whole, count, whole == len(TEAMS))
    salts = {name: str(min(map(str, found))) for name, found in seen.items()}
    apart = len(set(salts.values())) == 4 and salts["a1"] == salts["a2"]
    findings.check("different salts of 3 teams and a key without one", len(set(salts.values())), count, apart)
    findings.check("most cached tokens of a prompt that only others had sent", max(first), len(first), not any(first))
    findings.check("least cached tokens of a prompt that the team had sent", min(own), len(own), min(own) > 0)
    return salts


async def own_salts(findings: Findings, ask: Asking, plan: Sequence[Asked], salts: Mapping[str, str]) -> None:
    """What a client says itself divides the cache of its team, and opens nobody else's."""
    met = 0
    for way in plan:
        for guess in (salts["a1"], "shared"):
            (one, _), (other, _) = [await ask(name, *asked(way, "guess", cache_salt=guess)) for name in ("a1", "b1")]
            met += one == other or one in salts.values() or other in salts.values()
    findings.none("salts of a client's own that met another team's", met, 4 * len(plan))
