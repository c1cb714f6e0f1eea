"""Picks the worker that has most of the prompt in its prefix cache, unless it is too busy.

Let load(w) be the tokens in flight at worker w, for its strength, and saved(w) the tokens of this prompt that w was
sent before. A worker is *too busy* if

    load(w) > BOUND * mean load + saved(w)

that is, if waiting behind its work costs more than computing the prompt again at a worker of mean load. If other
gateways send turns of the same conversations, they look for each one at its place; so the place counts as saving more,
by what would be computed there again: the share of turns that this gateway did not send. The policy picks the worker
with the largest saved(w) that is left. Equal workers (none has the prompt, or all have the same system prompt) are
ranked by the conversation's place (`places`), so that gateways without shared state agree. If none has a prompt that is
mostly tools and system prompt, these have a place of their own: other conversations may begin with them, at other
gateways.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from gateway.core.routing_facts import RoutingFacts
from gateway.fleet.blocks import chain
from gateway.fleet.candidates import Candidates
from gateway.fleet.pick.places import Places
from gateway.fleet.pick.plain import by_tokens
from gateway.fleet.pick.policy import PickPolicy
from gateway.fleet.pick.reading import home_of
from gateway.fleet.pick.seen import MOST_KEYS, Seen
from gateway.fleet.worker import Worker

BOUND = 1.25
"""A worker without the prompt gets no request while its load is above this multiple of the mean (consistent hashing
with bounded loads, Mirrokni et al. 2016)."""
LEAST_SHARE = 0.5
"""A match of a smaller part of the prompt does not outweigh the place that all gateways agree on."""
_STAKE = 6
"""How many times a conversation that leaves its place is computed again, if all its turns reach other gateways: they
look for it there. Measured by `bench.routing.simulate`."""
_ELSEWHERE_STEP = 1 / 64
"""How much one turn counts for the share of those that follow one of another gateway."""
_ELSEWHERE_LEAST = 1 / 16
"""A smaller share is that of a gateway that is alone: what it does not know of began before it did."""
_NOTHING: Mapping[Worker, int] = {}


def _end(ends: Sequence[int], tokens: int) -> int:
    """The last of `ends` in a prompt of so many tokens; 0 if it has none."""
    count = bisect_right(ends, tokens)
    return ends[count - 1] if count else 0


def _known(worker: Worker, routing: RoutingFacts) -> bool:
    """Whether the worker's engine reports all that it has cached of such prompts."""
    return worker.blocks is not None and worker.blocks.whole and worker.blocks.covers(routing.salt)


class Prefix(PickPolicy):
    """See the module. A session that the client named takes precedence: it stays at its place in the hash while that
    worker is open. A half-open worker is picked first, because otherwise it might never return."""

    name = "prefix"
    needs = "prompt"

    def __init__(self, most_keys: int = MOST_KEYS) -> None:
        self.seen = Seen(most_keys)
        self.places = Places()
        # The share of the turns lately before which this gateway did not send one.
        self._elsewhere = 0.0
        # Picks among workers whose engines publish what they have: for what an engine reported, for what a worker was
        # sent, and for neither.
        self.picks = {"engine": 0, "sent": 0, "none": 0}

    def pick(self, candidates: Candidates, now: float, routing: RoutingFacts) -> Worker | None:
        if candidates.order is not None:
            candidates.look(now)
        workers = candidates.order = candidates.workers
        if not workers:
            return None
        for worker in workers:
            if worker.breaker.open_until:
                routing.why = "trial"
                return self._noted(worker, _NOTHING, (), routing)
        found = self.seen.match(routing.keys, routing.ends)
        informed = self._look_up(workers, routing, found) if routing.tokens else ()
        if routing.session is not None:
            routing.why = "session"
            return self._noted(self.places.lasting(workers, routing.session, now), found, informed, routing)
        if not routing.first_texts:
            routing.why = "load"
            return self._noted(min(by_tokens(candidates, routing))[-1], _NOTHING, (), routing)
        saved = self._saved(found, workers, routing, now)
        home, stake = None, 0.0
        if self._elsewhere > _ELSEWHERE_LEAST:
            home = self._home(workers, routing, found, now)
            stake = _STAKE * self._elsewhere * routing.prompt
        best, most = self._best(workers, now, saved, home, stake)
        if most and len(best) == 1:
            routing.why = "prefix"
            return self._noted(best[0], found, informed, routing, saved)
        place = home_of(routing.first_texts if saved else routing.system_texts or routing.first_texts)
        picked = best[0] if len(best) == 1 else self.places.of(workers, place, now, best)
        if most:
            routing.why = "prefix"
        else:
            away = len(best) < len(workers) and picked is not (home or self.places.of(workers, place, now))
            routing.why = "load" if away else "home"
        return self._noted(picked, found, informed, routing, saved)

    def _home(
        self, workers: Sequence[Worker], routing: RoutingFacts, found: Mapping[Worker, int], now: float
    ) -> Worker:
        """The place at which other gateways look for the conversation, as far as this one knows."""
        if not routing.system_texts:
            return self.places.of(workers, home_of(routing.first_texts), now)
        system = int(LEAST_SHARE * routing.prompt) if routing.system_tokens is None else routing.system_tokens
        least = _end(routing.ends, system)
        having = [worker for worker in workers if found.get(worker, 0) >= least]
        if having:
            return self.places.of(workers, home_of(routing.first_texts), now, having)
        return self.places.of(workers, home_of(routing.system_texts), now)

    @staticmethod
    def _best(
        workers: Sequence[Worker], now: float, saved: Mapping[Worker, int], home: Worker | None, stake: float
    ) -> tuple[list[Worker], int]:
        """(the workers that are not too busy and save the most tokens, how many they save). `home` may have `stake`
        tokens more in flight."""
        gain = max(saved.values()) if saved else 0
        if gain:
            best = [worker for worker, tokens in saved.items() if tokens == gain and worker in workers]
            if len(best) == 1 and best[0].load() <= gain * best[0].strength(now):
                return best, gain  # not too busy, whatever the load of the others is
        work = total = 0.0
        for worker in workers:
            work += worker.tokens if worker.reported is None else worker.load()
            total += worker.weight if worker.breaker.returned_at is None else worker.strength(now)
        bound = BOUND * work / total
        while True:  # mostly once: one of those that save the most is not too busy
            best = []
            for worker in saved if gain else workers:
                if saved.get(worker, 0) != gain or worker not in workers:
                    continue
                strength = worker.weight if worker.breaker.returned_at is None else worker.strength(now)
                load = worker.tokens if worker.reported is None else worker.load()
                if load / strength <= (bound + gain if worker is not home else bound + gain + stake):
                    best.append(worker)
            if best or not gain:
                return best, gain
            gain = max([less for less in saved.values() if less < gain], default=0)

    def sent(self, worker: Worker, routing: RoutingFacts) -> None:
        self.places.sent(worker, routing.charged)
        if routing.prompt_key or routing.keys:
            self.seen.add(routing.keys, worker, routing.prompt_key)
        if worker.blocks is not None:
            self.picks["none" if routing.why != "prefix" else "engine" if routing.exact else "sent"] += 1

    def keep(self, workers: Sequence[Worker]) -> None:
        self.seen.keep(workers)
        self.places.keep(workers)

    def _saved(
        self, found: Mapping[Worker, int], workers: Sequence[Worker], routing: RoutingFacts, now: float
    ) -> Mapping[Worker, int]:
        """The tokens that each worker need not compute, without those that have too small a match."""
        head = routing.system_tokens
        least = LEAST_SHARE * routing.prompt
        if head is not None:
            least = min(least, head + 1)
        saved = {worker: tokens for worker, tokens in found.items() if tokens >= least}
        if head is None:
            return saved
        before = routing.previous_tokens
        # These workers have nothing that is not in `found`.
        known = [worker for worker in workers if _known(worker, routing)] if routing.tokens else []
        having = [worker for worker in self.seen.having(routing.previous_key) if worker not in known]
        for worker in having:
            saved[worker] = max(before, saved.get(worker, 0))
        if having or max(saved.values(), default=0) >= max(head + 1, _end(routing.ends, before)):
            self._elsewhere -= self._elsewhere * _ELSEWHERE_STEP
            return saved
        if any(saved.get(worker, 0) > head for worker in known):
            return saved
        # This gateway did not send the turn before: another one did, to the conversation's place.
        home = self._home(workers, routing, found, now)
        if home not in known:
            self._elsewhere += (1 - self._elsewhere) * _ELSEWHERE_STEP
            saved[home] = max(before, saved.get(home, 0))
        return saved

    @staticmethod
    def _look_up(workers: Sequence[Worker], routing: RoutingFacts, found: dict[Worker, int]) -> Sequence[Worker]:
        """Corrects `found`, the tokens of this prompt that each worker was sent, by what engines report. An engine
        with missing events has at least what it reported. Returns the workers that were corrected."""
        informed = []
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
            if blocks.whole or had > found.get(worker, 0):
                found[worker] = had
                informed.append(worker)
        return informed

    @staticmethod
    def _noted(
        worker: Worker,
        found: Mapping[Worker, int],
        informed: Sequence[Worker],
        routing: RoutingFacts,
        saved: Mapping[Worker, int] = _NOTHING,
    ) -> Worker:
        routing.matched = matched = found.get(worker, 0)
        tokens = saved.get(worker, 0)
        if tokens < matched:
            tokens = matched
        routing.saved = tokens if tokens < routing.prompt else routing.prompt
        routing.exact = matched > 0 and worker in informed
        return worker
