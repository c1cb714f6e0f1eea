"""Options that have no effect because another option turns off what they are about."""

from __future__ import annotations

from typing import NamedTuple

from gateway.config.faults import Faults, Path
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


def _without_effect(at: Path, section: Section | None, rule: _Rule) -> Faults:
    if section is None or getattr(section, rule.by) not in rule.off:
        return
    for name in rule.names:
        value = getattr(section, name)
        if name in section.model_fields_set and value is not None and value is not False:  # those ask for nothing
            yield (*at, name), f"has no effect {rule.why}"
