"""Faults between models: fallbacks, splits and mirrors that name no other model, or the same one twice."""

from __future__ import annotations

from gateway.config.faults import Found, Unknown
from gateway.config.kinds import header_name_fault
from gateway.config.model import Config, Model


def between_models(config: Config, names: set[str]) -> Found:
    """names: all that were written, also those of models with other faults."""
    for name, model in config.models.items():
        yield from _fallback(config, name, model, names)
        yield from _split(config, name, model, names)
        if model.mirror is not None:
            wrong = _other(config, name, model.mirror.model, names)
            if wrong is not None:
                yield ("models", name, "mirror", "model"), wrong
        if model.hedge_s is not None and model.discover is None and len(model.workers) == 1:
            yield ("models", name, "hedge_s"), "has no effect: there is no second worker"


def _other(config: Config, name: str, other: str, names: set[str]) -> str | Unknown | None:
    """What is wrong with `other` as the name of another model than `name`."""
    if other not in names:
        return Unknown("is not a model", other, names)
    return "is the model itself" if config.resolve(other) == name else None


def _fallback(config: Config, name: str, model: Model, names: set[str]) -> Found:
    if not model.fallback and "fallback_on" in model.model_fields_set:
        yield ("models", name, "fallback_on"), "has no effect without fallback"
    seen: set[str | None] = set()
    for index, other in enumerate(model.fallback):
        path = ("models", name, "fallback", index)
        wrong = _other(config, name, other, names)
        target = config.resolve(other)
        if wrong is not None:
            yield path, wrong
        elif target in seen and target is not None:
            yield path, "is given twice"
        seen.add(target)


def _split(config: Config, name: str, model: Model, names: set[str]) -> Found:
    if not model.split and "split_by" in model.model_fields_set:
        yield ("models", name, "split_by"), "has no effect without split"
    total = 0.0
    for index, rule in enumerate(model.split):
        path = ("models", name, "split", index)
        wrong = _other(config, name, rule.model, names)
        if wrong is not None:
            yield (*path, "model"), wrong
        for at, key in enumerate(rule.keys or ()):
            # Tokens of an identity provider may bring any.
            if key not in config.keys and config.jwt is None:
                yield (*path, "keys", at), Unknown("is not a key", key, config.keys)
        for header in rule.headers:
            if fault := header_name_fault(header):
                yield (*path, "headers", header), fault
        if rule.keys is None and not rule.headers:
            total += rule.share
            if total > 1 + 1e-9:
                yield (*path, "share"), "makes the shares more than 1"
