"""Options that have no effect because another option turns off what they are about."""

from __future__ import annotations

from typing import NamedTuple

from gateway.config.faults import Faults, Path
from gateway.config.model import Config
from gateway.config.routing import Queue
from gateway.config.rules import Facts
from gateway.config.section import Section


class _Rule(NamedTuple):
    """`names` of a section do nothing while its option `by` has one of the values `off`."""

    by: str
    off: tuple[object, ...]
    names: tuple[str, ...]
    why: str


_RULES = {
    "redis": _Rule("mode", ("single", "cluster"), ("sentinel_name", "sentinel_auth"), "unless mode is sentinel"),
    "limiter": _Rule("partitions", (1,), ("partition_by",), "with one of limiter.partitions"),
    "store": _Rule("where", ("nowhere",), ("ttl_s", "max_bytes"), "as nothing is stored: where is nowhere"),
    "accounting": _Rule("redis_stream", (None,), ("max_length",), "without redis_stream"),
    "cors": _Rule("origins", ((),), ("headers", "max_age"), "without origins"),
    "metrics": _Rule("enabled", (False,), ("listen", "genai", "top_keys"), "while metrics are not enabled"),
    "console": _Rule("enabled", (False,), ("key_file", "key_env", "oidc"), "while the console is not enabled"),
}
_DISCOVER = _Rule("dns", (None,), ("interval_s",), "without dns: it is the time between two look-ups of that name")
_FALLBACK = _Rule("fallback", ((),), ("fallback_on",), "without fallback")
_SPLIT = _Rule("split", ((),), ("split_by",), "without split")
_LIMIT = _Rule("kind", ("concurrency",), ("burst", "per_s"), "on requests in flight, which have no window")
_EXACT = _Rule("kind", ("requests", "concurrency", "audio_seconds"), ("reserve",), "unless kind is tokens")
_RETRY = _Rule("attempts", (1,), ("budget", "min_per_second"), "with one of attempts: there are no retries")


def ineffective(facts: Facts) -> Faults:
    config = facts.config
    for index, limit in enumerate(config.limits):
        yield from _without_effect(("limits", index), limit, _LIMIT)
        yield from _without_effect(("limits", index), limit, _EXACT)
    for name, rule in _RULES.items():
        yield from _without_effect((name,), getattr(config, name), rule)
    for name, model in config.models.items():
        yield from _without_effect(("models", name), model, _FALLBACK)
        yield from _without_effect(("models", name), model, _SPLIT)
        if model.discover is not None and model.discover.redis:  # a `discover` with neither is a fault itself
            yield from _without_effect(("models", name, "discover"), model.discover, _DISCOVER)
    if all(model.hedge_s is None for model in config.models.values()):  # a second worker is paid for as a retry
        yield from _without_effect(("retry",), config.retry, _RETRY)
    yield from _counted_in_memory(facts)
    yield from _learnt_from_nothing(config)


def _counted_in_memory(facts: Facts) -> Faults:
    config = facts.config
    if config.redis is not None and config.limiter.store != "memory":
        return
    why = "without a section redis" if config.redis is None else "as limiter.store is memory"
    for path, bound in facts.bounds():
        yield from _written(path, bound, ("on_redis_failure",), why)
    # One gateway is all that the chart assumes then.
    names = ("replicas", "partition_by") if config.limiter.replicas > 1 else ("partition_by",)
    yield from _written(("limiter",), config.limiter, names, why)


def _learnt_from_nothing(config: Config) -> Faults:
    if config.routing.scrape_s:
        return
    queues: list[tuple[Path, Queue | None]] = [(("queue",), config.queue)]
    queues += [(("models", name, "queue"), model.queue) for name, model in config.models.items()]
    for path, queue in queues:
        yield from _written(path, queue, ("learn_capacity",), "with routing.scrape_s 0: engines are not asked")


def _without_effect(at: Path, section: Section | None, rule: _Rule) -> Faults:
    if section is not None and getattr(section, rule.by) in rule.off:
        yield from _written(at, section, rule.names, rule.why)


def _written(at: Path, section: Section | None, names: tuple[str, ...], why: str) -> Faults:
    if section is None:
        return
    for name in names:
        value = getattr(section, name)
        if name in section.model_fields_set and value is not None and value is not False:  # those ask for nothing
            yield (*at, name), f"has no effect {why}"
