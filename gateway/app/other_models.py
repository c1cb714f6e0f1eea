"""From options to what leads requests elsewhere, copies them or holds them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

from gateway.config import Config
from gateway.core.messages import Op
from gateway.observe.log import Log
from gateway.observe.metrics import Metrics
from gateway.pipeline import ServedModel
from gateway.pipeline.mirror import Mirror
from gateway.pipeline.other_models import OtherModels, Split, SplitRule
from gateway.pipeline.quarantine import Quarantine
from gateway.pipeline.watch import Watchers


def other_models(config: Config, name: str) -> OtherModels | None:
    """Those of the model `name`, aliases resolved; None where it has none."""
    options = config.models[name]
    if not options.fallback and not options.split:
        return None
    split = None
    if options.split:
        rules = tuple(
            SplitRule(
                config.model_names[rule.model],
                rule.share,
                None if rule.keys is None else frozenset(rule.keys),
                frozenset((header.lower().encode(), value.encode()) for header, value in rule.headers.items()),
            )
            for rule in options.split
        )
        sessions = frozenset(header.lower().encode() for header in config.routing.session_headers)
        split = Split(name, rules, sessions if options.split_by == "session" else None)
    return OtherModels(
        tuple(config.model_names[one] for one in options.fallback), frozenset(options.fallback_on), split
    )


def mirrors(
    config: Config,
    models: Mapping[str, ServedModel],
    estimate: Callable[[Op], int],
    quarantine: Quarantine | None,
    metrics: Metrics,
) -> list[Mirror]:
    """Gives each of `models` its mirror, and returns all of them. estimate: tokens of a prompt."""
    found = []
    for name, options in config.models.items():
        if options.mirror is not None:
            to = config.model_names[options.mirror.model]
            count = partial(_count, metrics, name, to)
            mirror = Mirror(to, options.mirror.share, options.mirror.max_in_flight, count, models, estimate, quarantine)
            models[name].watchers = Watchers(*models[name].watchers.all, mirror)
            found.append(mirror)
    return found


def _count(metrics: Metrics, name: str, to: str, result: str) -> None:
    metrics.mirrored.labels(name, to, result).inc()


def quarantine_of(config: Config, known: Quarantine | None, metrics: Metrics, log: Log) -> Quarantine | None:
    """`known` if there was one before a reload; None if requests are never held."""
    hold_s = config.breaker.quarantine_s
    if not hold_s:
        return None

    def held(model: str, digest: str) -> None:
        metrics.quarantined.labels(model).inc()
        log.event("warning", "request quarantined", model=model, digest=digest)

    return known or Quarantine(hold_s, held, time.monotonic)
