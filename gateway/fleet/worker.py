"""One worker as the gateway sees it: where it is, whether it is ready, how busy we keep it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

from msgspec import Struct

from gateway.config import Breaker as BreakerOptions
from gateway.core.failures import MEANINGS, Cause
from gateway.core.ports import UNKNOWN
from gateway.core.renaming import Renaming
from gateway.fleet.blocks import Blocks
from gateway.fleet.breaker import Breaker
from gateway.fleet.noticed import Attribute, Noticed, noticed
from gateway.fleet.progress import Progress

OTHERS = 1_024
"""Tokens that a request of another client of the engine is taken for: only the number of such requests is known."""
OUTPUT_COSTS = 4
"""Tokens of a prompt that one of a reply counts as: about the ratio of their prices, and so of the engine's time."""
HALF_LIFE_S = 40.0
"""Seconds in which a worker's recent work counts half as much."""


class EngineLoad(Struct, frozen=True):
    """Requests that run and wait in an engine, by itself, while `in_flight` of ours ran there.

    computed  tokens that it has computed since it started: of prompts what was not cached, and `OUTPUT_COSTS` times
              those of replies; None if it reports none. This may fall: the cached tokens of a prompt count before the
              prompt does
    counted   tokens of prompts and replies since it started; falls only if it restarted
    ranks     engines behind its address
    progress  figures that change while it works; those that it does not report are left out
    """

    running: float
    waiting: float
    in_flight: int
    computed: float | None = None
    counted: float = 0.0
    ranks: int = 1
    progress: tuple[float, ...] = ()

    @property
    def others(self) -> float:
        """Requests that are not ours."""
        return max(0.0, self.running + self.waiting - self.in_flight)


class Worker(Noticed):
    """One worker.

    changed    another object after each change of a worker's `ready`, `draining`, `trouble`, `serves` or `blocks`, and
               of whether such blocks are `live`
    address    scheme://host:port[/base]
    ready      the result of the last health probe
    in_flight  our requests that run on it
    background  those of them that nobody waits for
    tokens     tokens of those, by an estimate: what its prefix cache was taken to hold is left out
    reported   the load that its engine reported last; None if it reports none, or if that is stale; see `hold`
    others     tokens of work that it has from others, by that report
    recent     tokens that its engine computed lately, for any client, halved every `HALF_LIFE_S`; None if unknown
    peak       the highest `EngineLoad.computed` since that engine began
    blocks     the blocks that its engine reports as cached; None if the gateway does not read its events
    weight     its speed beside that of the others
    max_in_flight  most of our requests at once, or None; `capacity` can learn it, by full_readings
    ring_hash  64 bits of its address, the same in every gateway
    lives      how often it came back: each time with an empty cache, as far as we know
    draining   it finishes its requests and takes no new ones
    leaving    its own grace is over: its requests go to other workers
    suspected  as in `WorkerHandle`
    progress   what its engine was seen to do, and whether it is stalled
    facts      what it answered when it was asked about itself
    lacking    features that its model turned out to lack since it became ready
    served_as  the one name that it serves, if that is not the one it was taken to serve
    serves     the names that it serves, if there are several and none is the one that it was taken to serve
    named      the hosts that its certificate is for, if its own was not among them when it went down
    proxy      the URL of the proxy to it, its user and password masked; None without one
    http2      it must speak HTTP/2 from the first byte
    renaming   gives requests the name that it serves; None where all workers of the model serve the same one
    words      by which it refused the gateway's key when it was asked about itself, keys not masked; else None
    trouble    why it is not ready, or failed last; None once it is ready, and has served a request since
    on_free    callbacks for when it may have become free: its pools, more than one during a reload
    """

    __slots__ = (
        "_blocks", "_draining", "_ready", "_serves", "_trouble", "address", "background", "breaker", "facts",
        "full_readings", "http2", "in_flight", "lacking", "learns", "leaving", "lives", "max_in_flight",
        "missed_probes", "named", "on_free", "others", "peak", "probed", "progress", "proxy", "recent",
        "renaming", "reported", "ring_hash", "served_as", "suspected", "tokens", "turn", "weight", "words",
    )  # fmt: skip
    ready: Attribute[bool] = noticed("ready")
    draining: Attribute[bool] = noticed("draining")
    trouble: Attribute[Cause | None] = noticed("trouble")
    serves: Attribute[Sequence[str]] = noticed("serves")
    blocks: Attribute[Blocks | None] = noticed("blocks")

    def __init__(self, address: str, breaker: BreakerOptions, max_in_flight: int | None) -> None:
        self.address = address
        self.breaker = Breaker(breaker)
        self.max_in_flight = max_in_flight
        self.learns = False
        self.full_readings = 0
        self.in_flight = 0
        self.background = 0
        self.tokens = 0
        self.weight = 1.0
        self.reported: EngineLoad | None = None
        self.others = 0.0
        self.recent: float | None = None
        self.peak = 0.0
        self._blocks: Blocks | None = None
        self.ring_hash = int.from_bytes(blake2b(address.encode(), digest_size=8).digest(), "big")
        self.lives = 0
        self._ready = False
        self._draining = False
        self.leaving = False
        self.progress = Progress()
        self.facts = UNKNOWN
        self.missed_probes = 0
        self.suspected = False
        self.probed = False
        self.turn = 0
        self._trouble: Cause | None = None
        self.lacking: frozenset[str] = frozenset()
        self.named: Sequence[str] = ()
        self.proxy: str | None = None
        self.http2 = False
        self.words: str | None = None
        self.served_as: str | None = None
        self._serves: Sequence[str] = ()
        self.renaming: Renaming | None = None
        self.on_free: list[Callable[[], None]] = []

    def freed(self) -> None:
        for callback in self.on_free:
            callback()

    @property
    def generation(self) -> int:
        """The number that a request notes when it begins. See `Breaker`."""
        return self.breaker.generation

    @property
    def reason(self) -> str | None:
        """The word for `trouble`."""
        return None if self.trouble is None else self.trouble.value

    @property
    def meaning(self) -> str | None:
        """The sentence for `trouble`, with what mends it; it continues "the worker"."""
        if self.trouble is None:
            return None
        text = MEANINGS[self.trouble].text
        if self.trouble is Cause.HOST_NOT_IN_CERTIFICATE:
            hosts = ", ".join(self.named) or ("none" if self.proxy is None else "which are not read through a proxy")
            text += f" ({hosts}): name it by one of those in `workers`, or mend its certificate"
        if self.http2 and self.trouble in (Cause.BROKE_OFF, Cause.MALFORMED):
            text += ": does it speak HTTP/2 (`http2`)?"
        return text if self.proxy is None else f"{text}: proxy {self.proxy}"

    @property
    def half_open(self) -> bool:
        """Whether it is ejected. Requests that go to it now are trials."""
        return self.breaker.ejected

    @property
    def serving(self) -> bool:
        """Ready and not draining."""
        return self.ready and not self.draining

    @property
    def idle(self) -> bool:
        """Whether it has nothing to do, by its engine and by us."""
        load = self.reported
        return not self.in_flight and load is not None and not load.running + load.waiting

    def report_load(self, load: EngineLoad, passed_s: float) -> None:
        """Notes the load that the worker's engine reports; the report before it was `passed_s` ago."""
        before = self.reported
        if self.blocks is not None:
            self.blocks.ranks = load.ranks
        if load.computed is None:
            self.recent = None
        elif before is None or before.computed is None:
            self.recent, self.peak = 0.0, load.computed
        else:
            if load.counted < before.counted:  # the engine restarted
                self.peak = 0.0
            done = max(0.0, load.computed - self.peak)
            self.peak += done
            self.recent = (self.recent or 0.0) * 0.5 ** (passed_s / HALF_LIFE_S) + done
        self.hold(load)

    def hold(self, load: EngineLoad | None) -> None:
        """Sets the load that its engine reported last."""
        self.reported, self.others = load, 0.0 if load is None else OTHERS * load.others

    def forget_load(self) -> None:
        """Drops the load that the worker's engine reported: it is stale."""
        self.hold(None)
        self.recent = None

    def strength(self, now: float) -> float:
        """The part of the load that the worker should have, beside the others: its weight, less during slow start."""
        return self.weight * self.breaker.share(now)


def is_open(worker: Worker, now: float) -> bool:
    """Whether it is serving, not ejected, and below its limit."""
    return (
        worker.ready
        and not worker.draining
        and (worker.max_in_flight is None or worker.in_flight < worker.max_in_flight)
        and (not worker.breaker.open_until or worker.breaker.allows(now))
    )


def open_workers(workers: Iterable[Worker], now: float) -> list[Worker]:
    """Those that are open. Nothing is called for each of them, because they may be many."""
    return [
        worker
        for worker in workers
        if worker.ready
        and not worker.draining
        and (worker.max_in_flight is None or worker.in_flight < worker.max_in_flight)
        and (not worker.breaker.open_until or worker.breaker.allows(now))
    ]
