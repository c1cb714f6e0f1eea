"""`python -m bench.reserving`: what reserving the expected output makes of a limit, beside reserving the maximum.

Clients ask the real limiter on its memory store, in simulated time. A refused client comes back when its refusal says.
Lengths are drawn from traces of real use:

- AGENT: 48,631 replies to Claude Code in 739 sessions (github.com/callanjfox/kv-cache-tester, commit 94f6046d, Apache
  2.0), and by how much the prompt grows from one call to the next. A session's first prompt has 16,700 tokens on
  average there, and 12,400 in Codex' sessions (huggingface.co/datasets/Inferact/codex_swebenchpro_traces).
- CHAT: 12,031 requests of Mooncake's conversation trace (github.com/kvcache-ai/Mooncake, commit 3b5a5941, Apache 2.0);
  of the prompts those below 6,000 tokens, as the model has a context of 8,192.
"""

from __future__ import annotations

import argparse
import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from random import Random

from msgspec import Struct

from gateway.config import Limit
from gateway.config.sharing import Reserve
from gateway.core.estimate import Cost
from gateway.core.ports import RequestRecord
from gateway.core.usage import Usage
from gateway.ratelimit import Subject, SubjectLimiter
from gateway.ratelimit.memory import MemoryStore
from gateway.ratelimit.model import Limited
from gateway.ratelimit.reservation import Reservation

Quantiles = Sequence[tuple[float, float]]
"""(share of all, value), both ascending."""


def _even(*values: float) -> list[tuple[float, float]]:
    return [(place / (len(values) - 1), value) for place, value in enumerate(values)]


AGENT_OUTPUT = [
    *_even(
        2, 78, 92, 103, 110, 118, 124, 130, 137, 144, 151, 159, 168, 178, 189, 202, 216, 231, 249, 269, 292, 318, 349,
        386, 430, 483, 543, 624, 742, 943, 1310, 2108, 18195,
    )[:-1],
    *((0.985, 3078.0), (0.99, 3663.0), (0.995, 5015.0), (0.998, 6348.0), (0.999, 8013.0), (0.9995, 9680.0)),
    (1.0, 18195.0),
]  # fmt: skip
AGENT_GROWTH = [(0.0, 1.0), (0.1, 192.0), (0.25, 331.0), (0.5, 655.0), (0.75, 1551.0), (0.9, 3541.0), (1.0, 6161.0)]
CHAT_OUTPUT = _even(
    1, 5, 13, 22, 32, 53, 87, 121, 157, 195, 223, 250, 275, 295, 315, 332, 350, 366, 381, 396, 410, 426, 442, 456, 472,
    492, 513, 538, 566, 606, 664, 793, 2000,
)  # fmt: skip
CHAT_PROMPT = _even(
    891, 897, 903, 928, 1035, 1216, 1412, 1662, 1982, 2427, 2984, 3583, 4134, 4547, 4993, 5459, 5998
)  # fmt: skip
SPEED, PREFILL, PAUSE = 60.0, 8000.0, 4.0
"""Tokens a second of a reply and of a prompt; seconds in which a client runs its tools, or its user reads."""
OVER = 1.25
"""How far the estimate of a prompt is above its length, as text has 3.3 to 4.3 bytes a token and counts for 3."""
WINDOW, TEN = 60.0, 10


class Load(Struct, frozen=True):
    """Clients of one key.

    first   tokens of a session's first prompt; None: each prompt is drawn from those of chats
    calls   of a session
    cap     of each output; context less the prompt if there is no `max_tokens`
    burst   from then on (a second) every output has all that its cap allows
    """

    name: str
    limit: int
    clients: int
    cap: int
    first: int | None = None
    calls: int = 8
    burst: float | None = None


AGENTS = (
    Load("agents, prompts from 5,000 tokens, no cap, context 131,072", 100_000, 4, 131_072, first=5000),
    Load("Codex, prompts from 12,400 tokens, no cap, context 131,072", 100_000, 4, 131_072, first=12_400, calls=5),
    Load("Claude Code, prompts from 16,700 tokens, `max_tokens` 64,000", 100_000, 4, 64_000, first=16_700, calls=5),
)
CHATS = Load("chats, no cap, context 8,192, 10,000 a minute", 10_000, 12, 8192)
TURNING = Load("20 clients whose replies turn from short to all of 32,000", 100_000, 20, 32_000, 1000, 3, burst=1800.0)


class Figures(Struct):
    """Of one run. Shares are of the limit.

    calls     answered in a minute
    used      the tokens that were used in a minute on average
    ten       the most that was used on average in ten windows, wherever they begin
    window    the most that was used in one
    """

    calls: float
    used: float
    ten: float
    window: float


def drawn(quantiles: Quantiles, random: Random) -> int:
    at = random.random()
    place = max(bisect_right(quantiles, (at, float("inf"))) - 1, 0)
    (low, least), (high, most) = quantiles[place], quantiles[min(place + 1, len(quantiles) - 1)]
    return round(least + (most - least) * ((at - low) / (high - low) if high > low else 0.0))


class Client:
    """Sends one request after the other. Its requests are the same whatever the limit says."""

    def __init__(self, load: Load, seed: str) -> None:
        self._load, self._random = load, Random(seed)
        self._call = self._prompt = 0

    def ask(self, now: float) -> tuple[Cost, Usage]:
        """(what a gateway makes of the next request, what it will use)."""
        load, random = self._load, self._random
        if load.first is None:
            self._prompt, output = drawn(CHAT_PROMPT, random), drawn(CHAT_OUTPUT, random)
        else:
            if self._call % load.calls == 0:
                self._prompt = load.first
            output = drawn(AGENT_OUTPUT, random)
        self._call += 1
        prompt, estimate = self._prompt, round(self._prompt * OVER)
        if load.burst is not None and now >= load.burst:
            output = load.cap
        output = min(output, load.cap - (prompt if load.cap > 64_000 or load.first is None else 0))
        self._prompt += output + (drawn(AGENT_GROWTH, random) if load.first is not None else 0)
        whole = load.cap if load.cap > 64_000 or load.first is None else estimate + load.cap
        return Cost(whole, prompt=estimate, each=load.cap), Usage(prompt, output)


def play(load: Load, reserve: Reserve, seed: int, seconds: float) -> list[tuple[float, int]]:
    """(the second in which it ended, the tokens that it used) of each request that was answered."""
    now = 0.0
    rule = Limit(name="tpm", kind="tokens", limit=load.limit, per_s=WINDOW, reserve=reserve)
    store = MemoryStore(clock=lambda: round(now * 1e9))
    limiter = SubjectLimiter([rule], store)
    limiter.crowds.clock = lambda: now
    subject = Subject(key="k", model="m")
    ended: list[tuple[float, int]] = []
    order = count()
    due: list[tuple[float, int, Callable[[], None]]] = []

    def at(second: float, step: Callable[[], None]) -> None:
        heappush(due, (second, next(order), step))

    def send(client: Client, cost: Cost, usage: Usage) -> None:
        try:
            made = limiter.begin(subject, cost)
        except Limited as refused:
            at(now + (refused.retry_after or WINDOW), lambda: send(client, cost, usage))
            return
        assert isinstance(made, Reservation)
        took = (usage.input or 0) / PREFILL + (usage.output or 0) / SPEED
        at(now + took, lambda: end(client, made, usage))

    def end(client: Client, made: Reservation, usage: Usage) -> None:
        made.settle(RequestRecord(id="", dialect="", key="k", model="m", attempts=1, usage=usage))
        ended.append((now, usage.total or 0))
        at(now + PAUSE, lambda: send(client, *client.ask(now)))

    for number in range(load.clients):
        client = Client(load, f"{seed} {number}")
        at(number / 10, lambda client=client: send(client, *client.ask(now)))  # type: ignore[misc]
    while due and due[0][0] < seconds:
        now, _, step = heappop(due)
        step()
    return ended


def most_in(ended: Sequence[tuple[float, int]], window: float) -> int:
    """The most tokens in any interval of `window` seconds."""
    first = total = most = 0
    for second, tokens in ended:
        total += tokens
        while ended[first][0] <= second - window:
            total -= ended[first][1]
            first += 1
        most = max(most, total)
    return most


def figures(load: Load, reserve: Reserve, seeds: Sequence[int], minutes: int) -> Figures:
    """Means over the seeds, of runs of so many minutes, but the most of all for `ten` and `window`."""
    found = []
    for seed in seeds:
        ended = play(load, reserve, seed, minutes * WINDOW)
        total = sum(tokens for _, tokens in ended)
        found.append(
            Figures(
                len(ended) / minutes,
                total / minutes / load.limit,
                most_in(ended, TEN * WINDOW) / TEN / load.limit,
                most_in(ended, WINDOW) / load.limit,
            )
        )
    return Figures(
        sum(one.calls for one in found) / len(found),
        sum(one.used for one in found) / len(found),
        max(one.ten for one in found),
        max(one.window for one in found),
    )


HEADER = """\
| 100,000 tokens a minute for | reserve | calls a minute | used of the limit | at most, in ten windows | in one |
|---|---|--:|--:|--:|--:|"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.reserving", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=int, default=120, help="of simulated time")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each load")
    options = parser.parse_args()
    print(HEADER)
    for load in (*AGENTS, CHATS, TURNING):
        for reserve in ("maximum", "expected"):
            one = figures(load, reserve, range(options.seeds), options.minutes)
            print(f"| {load.name} | {reserve} | {one.calls:.1f} | {one.used:.0%} | {one.ten:.0%} | {one.window:.0%} |")


if __name__ == "__main__":
    asyncio.run(asyncio.to_thread(main))
