"""Workers, connections, caches, queues, the retry budget, limits, accounting and keys, for `/metrics`.

The figures are read when they are scraped; a request costs nothing here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.app.deployment import Deployment
from gateway.fleet.pick.prefix import Prefix
from gateway.observe.exposition import family

_BREAKER_STATES = ("closed", "open", "half_open")
_CACHE_STATES = ("whole", "part", "silent")


class DeploymentMetrics(Collector):
    """deployments: those that requests run with; the last is in force. Queues and connections are those of all."""

    def __init__(self, deployments: Sequence[Deployment]) -> None:
        self._deployments = deployments

    def collect(self) -> Iterator[Metric]:
        if not self._deployments:
            return
        waiting = Counter(dict.fromkeys(self._deployments[-1].pools, 0))
        connections: Counter[tuple[str, str]] = Counter()
        for one in self._deployments:
            waiting.update(
                {name: sum(pool.waiting for pool in fleet.pools) for name, fleet in one.fleets.models.items()}
            )
            for model, pooled in one.transports.items():
                connections.update({(model, "busy"): pooled.open - pooled.idle, (model, "idle"): pooled.idle})
        yield family("dragoman_queue_length", (((model,), count) for model, count in waiting.items()))
        yield family("dragoman_upstream_connections", connections.items())
        yield family("dragoman_retry_budget", [((), self._deployments[-1].budget.left)])
        yield from _workers(self._deployments[-1])
        yield from _caches(self._deployments[-1])
        yield from _limits(self._deployments[-1])
        if (keys := self._deployments[-1].services.keys) is not None:
            yield family("dragoman_stored_keys", [((), self._deployments[-1].prepared.keys.stored)])
            yield family("dragoman_stored_keys_missing", [((), keys.missing)])
            yield family("dragoman_keys_store_up", [((), keys.up is True)])
        if (batches := self._deployments[-1].offers.batches) is not None:
            yield family("dragoman_batches_running", [((), batches.running)])


def _workers(deployment: Deployment) -> Iterator[Metric]:
    now = time.monotonic()
    workers = list(deployment.workers.items())
    yield family("dragoman_worker_in_flight", ((labels, worker.in_flight) for labels, worker in workers))
    bounds = ((labels, worker.max_in_flight) for labels, worker in workers)
    yield family("dragoman_worker_capacity", ((labels, most) for labels, most in bounds if most is not None))
    breakers = [(labels, worker.breaker.state(now)) for labels, worker in workers]
    states = (((*labels, state), found == state) for labels, found in breakers for state in _BREAKER_STATES)
    yield family("dragoman_worker_breaker", states)
    troubles = (((*labels, worker.reason), 1) for labels, worker in workers if worker.reason is not None)
    yield family("dragoman_worker_trouble", troubles)
    yield family("dragoman_worker_stalled", ((labels, worker.progress.stalled) for labels, worker in workers))


def _caches(deployment: Deployment) -> Iterator[Metric]:
    """Caches of the workers whose engines publish them, and what decided the picks of models with `kv_events`."""
    every = deployment.workers.items()
    caches = [(labels, worker.blocks) for labels, worker in every if worker.blocks is not None]
    yield family("dragoman_cache_connected", ((labels, one.connected) for labels, one in caches))
    known = (((*labels, state), one.state == state) for labels, one in caches for state in _CACHE_STATES)
    yield family("dragoman_cache_known", known)
    results = ("read", "lost", "unreadable")
    batches = (((*labels, result), getattr(one, result)) for labels, one in caches for result in results)
    yield family("dragoman_cache_batches_total", batches)
    yield family("dragoman_cache_blocks", ((labels, len(one)) for labels, one in caches))
    yield family("dragoman_cache_bytes", ((labels, one.memory) for labels, one in caches))
    policies = [
        (model, deployment.pools[model].policy)
        for model, options in deployment.config.models.items()
        if options.kv_events is not None
    ]
    picks = ((model, policy.picks) for model, policy in policies if isinstance(policy, Prefix))
    yield family(
        "dragoman_cache_picks_total", (((model, by), n) for model, counts in picks for by, n in counts.items())
    )


def _limits(deployment: Deployment) -> Iterator[Metric]:
    if deployment.offers.limiter is not None:
        limiter = deployment.offers.limiter.limiter
        refused, shadowed = limiter.decisions.of("refused"), limiter.decisions.of("shadowed")
        yield family("dragoman_limits_strict", [((), limiter.state == "strict")])
        yield family("dragoman_limits_replicas", [((), limiter.store.replicas)])
        yield family("dragoman_limits_in_flight", [((), limiter.in_flight)])
        yield family("dragoman_limits_alone_total", [((), limiter.decisions.alone)])
        yield family("dragoman_limit_decisions_total", limiter.decisions.counts.items())
        yield family("dragoman_limits_refused_total", (((name,), count) for name, count in refused.items()))
        yield family("dragoman_limits_shadowed_total", (((name,), count) for name, count in shadowed.items()))
    if (stream := deployment.services.stream) is not None:
        counts = [(("written",), stream.counts.written), (("lost",), stream.counts.lost)]
        yield family("dragoman_accounting_records_total", counts)
