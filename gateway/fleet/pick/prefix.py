"""Picks the worker that has most of the prompt in its prefix cache, unless it is too busy.

Let load(w) be the tokens in flight at worker w, for its strength, and saved(w) the tokens of this prompt that w was
sent before. A worker is *too busy* if

    load(w) > BOUND * mean load + saved(w)

that is, if waiting behind its work costs more than computing the prompt again at a worker of mean load. Other gateways
look for a conversation at its home. So leaving the home costs more the larger the share of turns that they send: if
it is a half, a prompt of 1,000 tokens counts 3,000 more there (`_STAKE_TIMES`). The policy picks the worker
with the largest saved(w) that is left. Equal workers (none has the prompt, or all have the same system prompt) are
ranked by the conversation's home (`consistent_hashing`), so that gateways without shared state agree. If none has a
prompt that is mostly tools and system prompt, these have a home of their own: other conversations may begin with them,
at other gateways.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from functools import reduce
from heapq import heapify
from operator import or_

from msgspec import Struct

from gateway.core.routing_facts import RoutingFacts, home_of
from gateway.fleet.blocks import chain
from gateway.fleet.candidates import Candidates
from gateway.fleet.pick.consistent_hashing import FEW, ConsistentHashing, Fits, Shares, best_of, worker_of
from gateway.fleet.pick.plain import Entry, by_tokens, take
from gateway.fleet.pick.policy import PickPolicy
from gateway.fleet.pick.prefix_index import MOST_KEYS, Level, PrefixIndex
from gateway.fleet.worker import Worker

BOUND = 1.25
"""A worker without the prompt gets no request while its load is above this multiple of the mean (consistent hashing
with bounded loads, Mirrokni et al. 2016)."""
LEAST_SHARE = 0.5
"""A match of a smaller part of the prompt does not outweigh the home that all gateways agree on."""
_STAKE_TIMES = 6
"""How many times a conversation that leaves its home is computed again, if all its turns reach other gateways: they
look for it there. Measured by `bench.routing.simulate`."""
_ELSEWHERE_WEIGHT = 1 / 64
"""How much one turn counts for the share of those that follow one of another gateway."""
_LEAST_ELSEWHERE = 1 / 16
"""A smaller share is that of a gateway that is alone: what it does not know of began before it did."""
_MOST_COMPARED = 8
"""Workers that are compared with each other where the ring would be long in coming to one."""


def _end(ends: Sequence[int], tokens: int) -> int:
    """The last of `ends` in a prompt of so many tokens; 0 if it has none."""
    count = bisect_right(ends, tokens)
    return ends[count - 1] if count else 0


def _known(worker: Worker, routing: RoutingFacts) -> bool:
    """Whether the worker's engine reports all that it has cached of such prompts."""
    return worker.blocks is not None and worker.blocks.whole and worker.blocks.covers(routing.salt)


def _had(levels: Sequence[Level], bit: int) -> int:
    """The tokens that the worker with this bit has."""
    for bits, tokens in levels:
        if bits & bit:
            return tokens
    return 0


def _raised(levels: Sequence[Level], bits: int, least: int) -> list[Level]:
    """The levels if each of these workers has at least so many tokens."""
    for having, tokens in levels:
        if tokens >= least:
            bits &= ~having
    found = [(having & ~bits, tokens) for having, tokens in levels if having & ~bits]
    if bits:
        insort(found, (bits, least), key=_fewest)
    return found


def _fewest(level: Level) -> int:
    return -level[1]


class _Look(Struct):
    """The facts about the candidates that the policy keeps until they are looked at again.

    bound   the load, for a worker's strength, above which a worker that has nothing of a prompt is too busy
    trials  those that are ejected, and may be tried
    heap    made when a request comes of which only the length is known
    """

    candidates: Candidates
    shares: Shares
    bound: float
    trials: Sequence[Worker]
    heap: list[Entry] | None = None

    def least_loaded(self, routing: RoutingFacts) -> Worker | None:
        if self.heap is None:
            self.heap = by_tokens(self.candidates, routing)
            heapify(self.heap)
        return take(self.heap, self.candidates.now)


class Prefix(PickPolicy):
    """See the module. A session that the client named takes precedence: it stays at its home in the hash while that
    worker is open. A half-open worker is picked first, because otherwise it might never return."""

    name = "prefix"
    needs = "prompt"

    def __init__(self, most_keys: int = MOST_KEYS) -> None:
        self.index = PrefixIndex(most_keys)
        self.hashing = ConsistentHashing()
        # The share of the turns lately before which this gateway did not send one.
        self._elsewhere = 0.0
        # Picks among workers whose engines publish what they have: for what an engine reported, for what a worker was
        # sent, and for neither.
        self.picks = {"engine": 0, "sent": 0, "none": 0}

    def _look(self, candidates: Candidates, now: float) -> _Look:
        shares: Shares | None = candidates.retained
        if shares is None or not shares.stand():
            self.index.forget_lost()
            shares = candidates.retained = self.hashing.shares(candidates, now)
        work = 0.0
        trials: list[Worker] = []
        for worker in candidates.workers:
            work += worker.tokens + worker.others
            if worker.breaker.open_until:
                trials.append(worker)
        return _Look(candidates, shares, BOUND * work / shares.strength, trials)

    def pick(self, candidates: Candidates, now: float, routing: RoutingFacts) -> Worker | None:
        if not candidates.workers:
            return None
        look: _Look | None = candidates.order
        if look is None:
            look = candidates.order = self._look(candidates, now)
        for worker in look.trials:
            if worker.breaker.open_until and candidates.has(worker):
                routing.why = "trial"
                return self._noted(worker, (), (), 0, routing)
        levels: Sequence[Level] = self.index.match(routing.keys, routing.ends)
        informed = 0
        if routing.tokens:
            levels, informed = self._look_up(candidates.workers, routing, levels)
        saved: Sequence[Level] = ()
        if routing.session is not None:
            routing.why = "session"
            picked = worker_of(routing.session, look.shares, candidates.has, lasting=True)
        elif routing.first_texts:
            saved = self._saved(levels, look, routing)
            picked = self._not_too_busy(levels, saved, look, routing)
        else:
            levels, picked = (), None
        if picked is None:
            routing.why = "load"
            picked = look.least_loaded(routing)
        return self._noted(picked, levels, saved, informed, routing)

    def _not_too_busy(
        self, levels: Sequence[Level], saved: Sequence[Level], look: _Look, routing: RoutingFacts
    ) -> Worker | None:
        """A worker that saves the most tokens of those that are not too busy; at the conversation's home if it can
        be."""
        home, stake, now = None, 0.0, look.candidates.now
        if self._elsewhere > _LEAST_ELSEWHERE:
            home = self._home(levels, look, routing)
            stake = _STAKE_TIMES * self._elsewhere * routing.prompt
        having = gain = 0

        def is_free(worker: Worker) -> bool:
            """Whether it is not too busy for one that has `gain` tokens."""
            strength = worker.weight if worker.breaker.returned_at is None else worker.strength(now)
            most = look.bound + gain if worker is not home else look.bound + gain + stake
            return worker.tokens + worker.others <= most * strength

        def fits(worker: Worker) -> bool:
            """Whether it is one of those that have `gain` tokens, and not too busy."""
            return (
                (not having or having & self.index.bit(worker) > 0) and is_free(worker) and look.candidates.has(worker)
            )

        routing.why = "prefix"
        for having, gain in saved:  # noqa: B007
            picked = self._one_of(having, look, routing, fits)
            if picked is not None:
                return picked
        having = gain = 0
        key = home_of(routing.first_texts if saved else routing.system_texts or routing.first_texts)
        picked = home or worker_of(key, look.shares, look.candidates.has)
        routing.why = "home"
        if picked is None or not is_free(picked):
            routing.why = "load"
            picked = worker_of(key, look.shares, fits)
        return picked

    def _one_of(self, bits: int, look: _Look, routing: RoutingFacts, fits: Fits) -> Worker | None:
        """The worker with one of these bits that fits; of several, the one at the conversation's home."""
        if not bits & bits - 1:
            worker = self.index.owner(bits)
            return worker if fits(worker) else None
        key, count = home_of(routing.first_texts), bits.bit_count()
        if count > _MOST_COMPARED or count * FEW > len(look.shares.ring.workers):
            picked = worker_of(key, look.shares, fits)
            if picked is not None:
                return picked
        return best_of(key, look.shares, self.index.named(bits, key, _MOST_COMPARED), fits)

    def _home(self, levels: Sequence[Level], look: _Look, routing: RoutingFacts) -> Worker | None:
        """The home at which other gateways look for the conversation, as far as this one knows."""
        texts, has = routing.first_texts, look.candidates.has
        system = int(LEAST_SHARE * routing.prompt) if routing.system_tokens is None else routing.system_tokens
        if routing.system_texts and (least := _end(routing.ends, system)):
            having = reduce(or_, [bits for bits, tokens in levels if tokens >= least], 0)
            picked = having and self._one_of(
                having, look, routing, lambda one: having & self.index.bit(one) > 0 and has(one)
            )
            if picked:
                return picked
            texts = routing.system_texts
        return worker_of(home_of(texts), look.shares, has)

    def sent(self, worker: Worker, routing: RoutingFacts) -> None:
        self.hashing.sent(worker, routing.charged)
        if routing.prompt_key or routing.keys:
            self.index.add(routing.keys, worker, routing.prompt_key)
        if worker.blocks is not None:
            self.picks["none" if routing.why != "prefix" else "engine" if routing.exact else "sent"] += 1

    def keep(self, workers: Sequence[Worker]) -> None:
        self.index.keep(workers)
        self.hashing.keep(workers)

    def _saved(self, levels: Sequence[Level], look: _Look, routing: RoutingFacts) -> Sequence[Level]:
        """The tokens that workers need not compute, without those that have too small a match."""
        head = routing.system_tokens
        least = LEAST_SHARE * routing.prompt
        if head is not None:
            least = min(least, head + 1)
        saved: Sequence[Level] = [level for level in levels if level[1] >= least]
        if head is None:
            return saved
        before, known = routing.previous_tokens, 0
        if routing.tokens:  # these workers have nothing that is not in `levels`
            known = reduce(or_, [self.index.bit(one) for one in look.candidates.workers if _known(one, routing)], 0)
        having = self.index.having(routing.previous_key) & ~known
        if having:
            saved = _raised(saved, having, before)
        if having or (saved and saved[0][1] >= max(head + 1, _end(routing.ends, before))):
            self._elsewhere -= self._elsewhere * _ELSEWHERE_WEIGHT
            return saved
        if known and any(tokens > head and bits & known for bits, tokens in saved):
            return saved
        # This gateway did not send the turn before: another one did, to the conversation's home.
        home = self._home(levels, look, routing)
        if home is not None and not known & self.index.bit(home):
            self._elsewhere += (1 - self._elsewhere) * _ELSEWHERE_WEIGHT
            saved = _raised(saved, self.index.bit(home), before)
        return saved

    def _look_up(
        self, workers: Sequence[Worker], routing: RoutingFacts, levels: Sequence[Level]
    ) -> tuple[Sequence[Level], int]:
        """`levels`, the tokens of this prompt that workers were sent, corrected by what engines report, and the bits
        of the workers for which that was done. An engine with missing events has at least what it reported."""
        informed, found = 0, []
        tokens, salt, chains = routing.tokens, routing.salt, routing.chains
        estimated = routing.prompt / len(tokens)
        for worker in workers:
            blocks = worker.blocks
            if blocks is None or not blocks.covers(salt):
                continue
            size, had = blocks.size, 0
            if size:
                keys = chains.get(size)
                if keys is None:
                    keys = chains[size] = chain(tokens, size, salt)
                had = int(blocks.match(keys) * estimated)
            bit = self.index.bit(worker)
            if blocks.whole or had > _had(levels, bit):
                informed |= bit
                found.append((bit, had))
        found += [(bits & ~informed, sent) for bits, sent in levels]
        return sorted([level for level in found if all(level)], key=_fewest), informed

    def _noted(
        self,
        worker: Worker | None,
        levels: Sequence[Level],
        saved: Sequence[Level],
        informed: int,
        routing: RoutingFacts,
    ) -> Worker | None:
        if not levels and not saved:
            routing.matched = routing.saved = 0
            routing.exact = False
        elif worker is not None:
            bit = self.index.bit(worker)
            routing.matched = matched = _had(levels, bit)
            routing.saved = min(routing.prompt, max(matched, _had(saved, bit)))
            routing.exact = matched > 0 and bit & informed > 0
        return worker
