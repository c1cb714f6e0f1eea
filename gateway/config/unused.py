"""Options that have no effect where another option turns off what they are about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.config.faults import Found, Path
from gateway.config.model import Config
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
    "metrics": _Rule("enabled", (False,), ("genai",), "while metrics are not enabled"),
}
_DISCOVER = _Rule("dns", (None,), ("interval_s",), "without dns: it is the time between two look-ups of that name")


def unused(config: Config, raw: Mapping[str, Any]) -> Found:
    """raw is what was written, before wrong values were left out."""
    for name, rule in _RULES.items():
        yield from _idle((name,), getattr(config, name), raw.get(name), rule)
    models = raw.get("models")
    for name, model in config.models.items():
        written = models.get(name) if isinstance(models, Mapping) else None
        found = written.get("discover") if isinstance(written, Mapping) else None
        if model.discover is not None and model.discover.redis:  # with neither that is the fault
            yield from _idle(("models", name, "discover"), model.discover, found, _DISCOVER)


def _idle(at: Path, section: Section | None, raw: Any, rule: _Rule) -> Found:
    if section is None or getattr(section, rule.by) not in rule.off:
        return
    written = raw.get(rule.by) if isinstance(raw, Mapping) else None
    if written and (rule.by not in section.model_fields_set or isinstance(written, list)):
        return  # it or all that it lists was left out as wrong: what was meant is unknown
    for name in rule.names:
        value = getattr(section, name)
        if name in section.model_fields_set and value is not None and value is not False:  # those ask for nothing
            yield (*at, name), f"has no effect {rule.why}"
