"""The limits of a configuration as rules."""

from __future__ import annotations

from gateway.config import Config, Limit
from gateway.config.sharing import Dimension
from gateway.core.estimate import Estimator
from gateway.ratelimit.addresses import canonical
from gateway.ratelimit.kinds import KINDS
from gateway.ratelimit.plan import RuleIndex


class Limits:
    """The limits of a configuration, ready for use. A reload makes them in a thread.

    index       the rules
    any         whether there are some
    measured    whether some need to know what a request may use
    by_address  whether some depend on the client's address
    """

    def __init__(self, config: Config) -> None:
        found = rules(config)
        self.index = RuleIndex(found)
        self.any = bool(found)
        self.measured = any(KINDS[rule.kind].measured for rule in found)
        self.by_address = any("address" in (*rule.scope, *rule.match) for rule in found)


def rules(config: Config) -> list[Limit]:
    """The limits of `config` in the order in which they are tried. Those of single keys come first, as exceptions."""
    found = []
    for name, key in config.keys.items():
        for kind in KINDS:
            limit = getattr(key.limits, kind, None)
            if limit is not None:
                found.append(Limit(name=kind, kind=kind, limit=limit, match={"key": (name,)}))
    for one in config.limits:
        match = {
            dimension: tuple(_as_counted(config, dimension, value) for value in values)
            for dimension, values in one.match.items()
        }
        found.append(one.model_copy(update={"match": match}))
    return found


def _as_counted(config: Config, dimension: Dimension, value: str) -> str:
    """A value to match in the form in which requests carry it: the model of an alias, the canonical address."""
    if dimension == "model":
        return config.resolve(value) or value
    return canonical(value) if dimension == "address" else value


def estimator(config: Config) -> Estimator:
    """Estimates the tokens of requests, as configured."""
    limiter = config.limiter
    return Estimator(limiter.bytes_per_token, limiter.image_tokens, output=limiter.output_tokens)
