"""S8 and S9: what a caller must not be able to tell apart is told apart neither by its bytes nor by its time."""

from __future__ import annotations

import gc
import json
import math
import random
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

import yaml

from gateway.auth import Keyring, new_key
from gateway.auth.keys import checksum
from gateway.core.errors import GatewayError
from gateway.core.fields import Field
from gateway.core.http import Headers
from tests.chaos.house import House, house
from tests.chaos.link import Answer, Link, request
from tests.chaos.row import FULL, SEED, Findings, percentile, row
from tests.support.clients import DIALECTS, WAYS, target
from tests.support.harness import load_text

# -- S8: a model that is forbidden, and one that does not exist -----------------------------------------------------

ROUNDS = 2000 if FULL else 500
"""Requests of each kind for each way of naming a model."""

NAMES = ("secret", "absent")


def _ways(name: str) -> dict[str, bytes]:
    """Every place in which a dialect's clients name a model -> a request for `name`."""
    found = {}
    for way in WAYS:
        fields = [field for field in DIALECTS[way.dialect].fields[way.operation] if field.names_model]
        body = way.body("hello", max_tokens=4)
        if "{" in way.route.path:
            found[f"{way}: path"] = request("POST", way.path(name), {}, json.dumps(body).encode())
        for field in fields:
            headers = {field.name.lower(): name} if field.where == "header" else {}
            named = {**body, field.name: name} if field.where == "body" else body
            found[f"{way}: {field.name}"] = request("POST", way.path(), headers, json.dumps(named).encode())
    for dialect, made in DIALECTS.items():
        for route in made.routes:
            if route.method == "GET" and "{" in route.path.replace("{place:path}", ""):
                found[f"{dialect} {route.path}"] = request("GET", target(dialect, route, name), {})
            elif route.method == "GET" and not route.open:
                headers = {field.name.lower(): name for field in _headers(dialect)}
                if headers:
                    found[f"{dialect} {route.path}"] = request("GET", target(dialect, route), headers)
    return found


def _headers(dialect: str) -> list[Field]:
    """Those that name a model."""
    fields = [field for found in DIALECTS[dialect].fields.values() for field in found]
    return [field for field in fields if field.names_model and field.where == "header"]


def _shown(answer: Answer, name: str) -> tuple[Any, ...]:
    """All that a caller sees, but for the name that it sent itself and the second of the answer."""
    body = answer.body.replace(name.encode(), b"?")
    return answer.status, tuple(header for header in answer.headers.items() if header[0] != "date"), body


@row("S8", "a model that is forbidden and one that does not exist, in every place that names one")
async def forbidden_is_absent(findings: Findings) -> None:
    """A key requests a model that it may not use, by name and by alias, and a model that does not exist, in 17 ways:
    every place where a dialect's clients name a model; 500 times each, `FULL=1`: 2,000, in random order.

    Passes if the answers are equal byte for byte; their median times differ by at most 5 % in each way.
    """
    models = {"secret": {"backend": "vllm", "workers": ["http://127.0.0.1:9"], "aliases": ["hidden"]}}
    async with house({"limited": {"models": ["m"]}}, {"models": models}) as at:
        for what, names in (("", NAMES), (", by an alias", ("hidden", "absent"))):
            await _compare(findings, at, what, names)


async def _compare(findings: Findings, at: House, what: str, names: tuple[str, str]) -> None:
    draw, link = random.Random(SEED), Link(at.gateways[0].address)
    head = f"\r\napi-key: {at.keys['limited']}\r\nx-request-id: same\r\n\r\n".encode()
    asked = {name: {way: data.replace(b"\r\n\r\n", head, 1) for way, data in _ways(name).items()} for name in names}
    seen: dict[tuple[str, str], list[Answer]] = {}
    ways = list(asked[names[0]]) * ROUNDS
    draw.shuffle(ways)
    # Both names one after the other, either of them first: what the machine does meanwhile is the same for both.
    for way in ways:
        for name in draw.sample(names, 2):
            seen.setdefault((way, name), []).append(await link.send(asked[name][way]))
    link.close()
    differ = [
        way
        for way in asked[names[0]]
        if len({_shown(answer, name) for name in names for answer in seen[way, name]}) != 1
        or seen[way, names[0]][0].status < 400
    ]
    count = len(asked[names[0]])
    findings.none(f"ways of naming a model in which the answers differ, of {count}{what}", differ, 2 * len(ways))
    off = {}
    for way in asked[names[0]]:
        forbidden, absent = (percentile([one.seconds for one in seen[way, name]], 0.5) for name in names)
        off[way] = abs(forbidden / absent - 1)
    worst = max(off, key=lambda way: off[way])
    findings.check(
        f"forbidden over absent, median time, the most of {count} ways, within 5 %{what}",
        f"{off[worst]:.1%} ({worst})",
        2 * len(ways),
        off[worst] <= 0.05,
        timed=True,
    )


# -- S9: near misses of a key ---------------------------------------------------------------------------------------

IN_PROCESS = 1_000_000 if FULL else 200_000
OVER_HTTP = 50_000 if FULL else 5_000
"""Measurements of each pair, both of its kinds together."""
ALIKE = 4.5
"""|t| from which two kinds are told apart (as in dudect; Reparaz, Balasch and Verbauwhede, 2017)."""
_CROPS = tuple(1 - 0.5**power for power in range(1, 11))
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_KEYS = 2000
"""Known keys in process: the near misses of a few are few, and what came before is quicker whatever it is."""


def welch(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Welch's t of the difference of two means, and the standard error of that difference."""
    parts = []
    for values in (first, second):
        mean = math.fsum(values) / len(values)
        parts.append((mean, math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values)))
    error = math.sqrt(parts[0][1] + parts[1][1])
    gap = parts[0][0] - parts[1][0]
    return (gap / error if error else math.copysign(math.inf, gap) if gap else 0.0), error


def told_apart(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """The t that is furthest from 0, over all measurements and over those below ten percentiles of both kinds together,
    from half of them to all but a thousandth: what an interrupt takes hides what a comparison takes. And the least
    standard error."""
    both = sorted([*first, *second])
    worst, least = welch(first, second)
    for share in _CROPS:
        most = percentile(both, share)
        kept = [[value for value in values if value <= most] for values in (first, second)]
        if min(map(len, kept)) < 100:
            continue
        t, error = welch(*kept)
        worst, least = max(worst, t, key=abs), min(least, error)
    return worst, least


class Misses:
    """Keys that are nearly one of `held`, of which every other one is disabled, or of as many that no gateway knows; by
    kind, drawn anew each time. All are made in one way: what takes time about a text itself is the same."""

    def __init__(self, held: Sequence[str]) -> None:
        self._valid, self._disabled = held[1::2], held[::2]
        self._unknown = [new_key("unknown")[0] for _ in self._valid]
        self._draw = random.Random(SEED)

    def pairs(self) -> dict[str, tuple[Callable[[], str], Callable[[], str]]]:
        """Pairs of kinds that nobody may tell apart by time: they are answered alike."""
        return {
            "wrong at the first byte, at the last": (lambda: self._near(0), lambda: self._near(42)),
            "unknown id, wrong secret of a known one": (lambda: self._near(of=self._unknown), self._near),
            "wrong secret of a disabled key, of a valid one": (lambda: self._near(of=self._disabled), self._near),
            "mistyped: unknown id, known id": (
                lambda: self._near(of=self._unknown, typed=False),
                lambda: self._near(typed=False),
            ),
            "mistyped at the first byte, at the last": (
                lambda: self._near(0, typed=False),
                lambda: self._near(42, typed=False),
            ),
        }

    def _near(self, at: int | None = None, of: Sequence[str] | None = None, typed: bool = True) -> str:
        """A key whose secret is wrong at one byte, with its own checksum or with that of another text."""
        prefix, id_, secret, _ = self._draw.choice(of or self._valid).split("_")
        place = self._draw.randrange(43) if at is None else at
        wrong = self._draw.choice(_DIGITS.replace(secret[place], ""))
        stem = f"{prefix}_{id_}_{secret[:place]}{wrong}{secret[place + 1 :]}"
        return f"{stem}_{checksum(stem.encode() if typed else self._draw.randbytes(8)).decode()}"


def _shuffled(kinds: Sequence[Callable[[], str]], count: int) -> tuple[list[int], list[str]]:
    """`count` keys, half of each kind, and which kind each is, in an order that only the seed tells."""
    plan = [0, 1] * (count // 2)
    random.Random(SEED).shuffle(plan)
    # Split off one text: where each lies in memory then tells nothing of how it was made.
    return plan, " ".join(kinds[number]() for number in plan).split()


def _parted(plan: Sequence[int], times: Sequence[float]) -> list[list[float]]:
    """The times of each kind. Only now: to keep them apart while measuring is work that differs by kind."""
    return [[time for kind, time in zip(plan, times, strict=True) if kind == number] for number in (0, 1)]


@row("S9", "how long near misses of a key take, in the gateway's own function and over HTTP")
async def near_misses(findings: Findings) -> None:
    """Nearly correct keys in random order, in pairs with the same answer: the first or the last byte of the secret is
    wrong; the id is unknown or the secret wrong; the key is disabled or valid; with and without a correct checksum;
    5,000 of each pair over HTTP and 200,000 in the gateway's own function, `FULL=1`: 50,000 and 1,000,000.

    Passes if Welch's t stays within ±4.5 for every pair, over all times and over those below each of ten
    percentiles.
    """
    async with house({f"key-{number}": {"disabled": number % 2 == 0} for number in range(40)}, {}) as at:
        for what, kinds in Misses(list(at.keys.values())).pairs().items():
            times = await _over_http(at.gateways[0].address, kinds)
            _judge(findings, f"over HTTP: {what}", times, 1e-3, "µs")
    entries: dict[str, Any] = {}
    held = []
    for number in range(_KEYS):
        key, entry = new_key(f"key-{number}")
        held.append(key)
        entries |= yaml.safe_load(entry)
        entries[f"key-{number}"]["disabled"] = number % 2 == 0
    models = {"m": {"backend": "vllm", "workers": ["http://127.0.0.1:9"]}}
    keyring = Keyring(load_text(yaml.safe_dump({"keys": entries, "models": models})))
    for what, kinds in Misses(held).pairs().items():
        _judge(findings, f"in process: {what}", _in_process(keyring, kinds), 1.0, "ns")


def _judge(findings: Findings, what: str, times: Sequence[Sequence[float]], scale: float, unit: str) -> None:
    t, error = told_apart(*times)
    typical = percentile([*times[0], *times[1]], 0.5)
    findings.check(
        what,
        f"t {t:+.1f} in {typical * scale:.2f} {unit}; {ALIKE * error * scale:.3f} {unit} would be seen",
        sum(map(len, times)),
        abs(t) < ALIKE,
    )


async def _over_http(address: str, kinds: Sequence[Callable[[], str]]) -> list[list[float]]:
    link, times = Link(address), []
    plan, keys = _shuffled(kinds, OVER_HTTP)
    for key in keys:
        data = request("GET", "/v1/models", {"api-key": key})
        began = perf_counter_ns()
        answer = await link.send(data)
        times.append(float(perf_counter_ns() - began))
        assert answer.status == 401
    link.close()
    return _parted(plan, times)


def _in_process(keyring: Keyring, kinds: Sequence[Callable[[], str]]) -> list[list[float]]:
    times = []
    plan, keys = _shuffled(kinds, IN_PROCESS)
    gc.collect()
    gc.disable()
    try:
        for key in keys:
            headers: Headers = [(b"api-key", key.encode())]
            began = perf_counter_ns()
            try:
                keyring.identify(headers, "openai")
            except GatewayError:
                times.append(float(perf_counter_ns() - began))
    finally:
        gc.enable()
    return _parted(plan, times)
