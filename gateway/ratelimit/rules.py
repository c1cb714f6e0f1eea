"""The limits of a configuration as rules."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.config import Config, Limit
from gateway.config.sharing import Dimension
from gateway.core.estimate import Estimator
from gateway.ratelimit.addresses import canonical
from gateway.ratelimit.kinds import KINDS
from gateway.ratelimit.plan import RuleIndex


class Limits:
    """The limits of a configuration, ready for use. A reload makes them in a thread. stored: the keys of the store,
    each with its limits.

    index       the rules
    any         whether there are some, or keys of the store may bring some
    measured    whether some need to know what a request may use
    by_address  whether some depend on the client's address
    """

    def __init__(self, config: Config, stored: Iterable[tuple[str, object]] = ()) -> None:
        found = rules(config)
        self.index = RuleIndex(found)
        for name, limits in stored:
            own = key_rules(name, limits)
            self.index.own(name, own)
            found += own
        self.any = bool(found) or config.keys_store is not None
        self.measured = any(KINDS[rule.kind].measured for rule in found)
        self.by_address = any("address" in (*rule.scope, *rule.match) for rule in found)


def rules(config: Config) -> list[Limit]:
    """The limits of `config` in the order in which they are tried. Those of single keys come first, as exceptions."""
    found = []
    for name, key in config.keys.items():
        found += key_rules(name, key.limits)
    for one in config.limits:
        match = {
            dimension: tuple(_as_counted(config, dimension, value) for value in values)
            for dimension, values in one.match.items()
        }
        found.append(one.model_copy(update={"match": match}))
    return found


def key_rules(name: str, limits: object) -> list[Limit]:
    """The limits of the key `name` alone. limits: its `KeyLimits`, or what is like it; None for none."""
    own = {kind: getattr(limits, kind, None) for kind in KINDS}
    match: dict[Dimension, tuple[str, ...]] = {"key": (name,)}
    return [Limit(name=kind, kind=kind, limit=limit, match=match) for kind, limit in own.items() if limit is not None]


def _as_counted(config: Config, dimension: Dimension, value: str) -> str:
    """A value to match in the form in which requests carry it: the model of an alias, the canonical address."""
    if dimension == "model":
        return config.resolve(value) or value
    return canonical(value) if dimension == "address" else value


def estimator(config: Config) -> Estimator:
    """Estimates the tokens of requests, as configured."""
    limiter = config.limiter
    return Estimator(limiter.bytes_per_token, limiter.image_tokens, output=limiter.output_tokens)
