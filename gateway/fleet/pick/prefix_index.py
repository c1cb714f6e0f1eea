"""An index of the prefixes of prompts that each worker was sent, bounded in memory."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.fleet.worker import Worker

MOST_KEYS = 65_536
"""Keys of one generation; there are two. An entry takes some 130 bytes, so one model's index takes 17 MB at most."""
Level = tuple[int, int]
"""(the bits of workers, the tokens that each of them has). Levels hold each worker once, those with the most first."""


class PrefixIndex:
    """Prefix of a prompt -> the workers that were sent it, a bit for each.

    It forgets by generations. New keys go into the young generation. When that holds `most` keys it becomes the old
    one, and the previous old one is dropped. So a key is forgotten after between `most` and twice as many further keys.
    A worker that was away has lost its cache, so it gets another bit when it returns.
    """

    def __init__(self, most: int = MOST_KEYS) -> None:
        self._most = most
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self._bits: dict[Worker, tuple[int, int]] = {}
        self._owners: dict[int, Worker] = {}
        self._live = 0
        # Bits of workers that are gone, which both generations may still hold: free again after two turns.
        self._gone = self._gone_before = 0

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def match(self, keys: Sequence[int], ends: Sequence[int]) -> list[Level]:
        """The ends of the last of `keys` that workers were sent.

        A worker that was sent a prefix was sent the shorter ones, and no shorter one is forgotten before it. So few
        keys are looked at: the last, the first, and by bisection those at which some workers' match ends."""
        if not keys:
            return []
        young, old = self._young, self._old
        left = (young.get(keys[0], 0) | old.get(keys[0], 0)) & self._live
        if not left:
            return []
        found: list[Level] = []
        at = most = len(keys) - 1
        had = (young.get(keys[at], 0) | old.get(keys[at], 0)) & left
        while True:
            if had:
                found.append((had, ends[at]))
                left ^= had
            if not left:
                return found
            at, had = 0, left  # they have the first key, and not that at `most`
            while most - at > 1:
                middle = at + most >> 1
                there = (young.get(keys[middle], 0) | old.get(keys[middle], 0)) & left
                if there:
                    at, had = middle, there
                else:
                    most = middle
            most = at

    def having(self, key: int) -> int:
        """The bits of the workers that were sent what `key` stands for."""
        return (self._young.get(key, 0) | self._old.get(key, 0)) & self._live

    def owner(self, bit: int) -> Worker:
        """The worker that has this bit."""
        return self._owners[bit]

    def named(self, bits: int, key: int = 0, most: int = MOST_KEYS) -> list[Worker]:
        """The workers that have these bits, at most so many: others for another key."""
        found: list[Worker] = []
        first = key % bits.bit_length() if bits else 0
        for part in (bits >> first << first, bits & (1 << first) - 1):
            while part and len(found) < most:
                bit = part & -part
                part ^= bit
                found.append(self._owners[bit])
        return found

    def add(self, keys: Sequence[int], worker: Worker, whole: int = 0) -> None:
        """`worker` is sent a prompt with these prefixes, and all in all `whole`, unless that is 0."""
        bit = self.bit(worker)
        young = self._young
        if whole:
            young[whole] = young.get(whole, 0) | bit
        if keys and not young.get(keys[-1], 0) & bit:  # else it was sent all of them since the last turn
            for key in keys:
                young[key] = young.get(key, 0) | bit
        if len(young) >= self._most:
            self._old, self._young = young, {}
            self._gone_before, self._gone = self._gone, 0

    def keep(self, workers: Sequence[Worker]) -> None:
        """Forgets all workers but these."""
        for worker in self._bits.keys() - workers:
            self._retire(worker)

    def forget_lost(self) -> None:
        """Forgets what workers had before they were away."""
        for worker in [worker for worker, (_, lives) in self._bits.items() if lives != worker.lives]:
            self._retire(worker)

    def bit(self, worker: Worker) -> int:
        """The bit of the worker in its present life."""
        known = self._bits.get(worker)
        if known is not None:
            if known[1] == worker.lives:
                return known[0]
            self._retire(worker)
        taken = self._gone | self._gone_before | self._live
        free = ~taken & (taken + 1)
        self._bits[worker] = (free, worker.lives)
        self._owners[free] = worker
        self._live |= free
        return free

    def _retire(self, worker: Worker) -> None:
        bit, _ = self._bits.pop(worker)
        del self._owners[bit]
        self._live &= ~bit
        self._gone |= bit
