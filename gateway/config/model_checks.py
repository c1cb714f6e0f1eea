"""Faults within one model, and of the models that it names: fallbacks, splits and mirrors."""

from __future__ import annotations

from gateway.config.available import Available, listed
from gateway.config.faults import Faults, Path, Unknown
from gateway.config.kinds import header_name_fault
from gateway.config.model import Model
from gateway.config.rules import Facts, header_faults, repeated


def each_model(facts: Facts) -> Faults:
    for name, model in facts.config.models.items():
        at = ("models", name)
        yield from _workers(facts, at, model)
        yield from _kv_events(at, model)
        yield from _headers(at, model)
        yield from _fallback(facts, name, model)
        yield from _split(facts, name, model)
        if model.mirror is not None:
            yield from _other(facts, name, ("mirror", "model"), model.mirror.model)
        if model.adapters and model.paths is not None:
            yield (*at, "adapters"), "has no effect beside paths: workers are not asked for them"
        if facts.known is not None:
            yield from _backend(at, model, facts.known)


def _workers(facts: Facts, at: Path, model: Model) -> Faults:
    found = model.discover
    if found is not None and not found.redis and found.dns is None:
        yield (*at, "discover"), "must say where: redis or dns"
    if found is not None and found.redis and not facts.has("redis"):
        yield (*at, "discover", "redis"), "needs a section redis"
    if found is None and not model.workers:
        yield (*at, "workers"), "is required, unless there is discover"
    prompts = model.prefill.workers if model.prefill is not None else ()
    for path, workers in (((*at, "workers"), model.workers), ((*at, "prefill", "workers"), prompts)):
        for index in repeated(workers):
            yield (*path, index), "is given twice"
    generating = set(model.workers)
    for index, address in enumerate(prompts):
        if address in generating:
            yield (*at, "prefill", "workers", index), "is one of the model's workers, too"
    every = {*model.workers, *prompts}
    for address in model.worker_options if found is None else ():
        if address not in every:
            yield (*at, "worker_options", address), "is none of workers"
    may_join = found is not None and found.redis
    if model.ca_file and not may_join and not any(worker.startswith("https://") for worker in every):
        yield (*at, "ca_file"), "has no effect: none of the workers is https"
    if model.hedge_s is not None and found is None and len(model.workers) == 1:
        yield (*at, "hedge_s"), "has no effect: there is no second worker"


def _kv_events(at: Path, model: Model) -> Faults:
    if model.kv_events is None:
        for address, own in model.worker_options.items():
            if own.kv_events is not None:
                yield (*at, "worker_options", address, "kv_events"), "needs kv_events of the model"
        return
    if model.policy != "prefix":
        yield (*at, "kv_events"), f"has no effect with policy {model.policy}"
    if model.paths is not None and "/tokenize" not in model.paths:
        yield (*at, "kv_events"), "needs /tokenize among paths"


def _headers(at: Path, model: Model) -> Faults:
    for header in model.headers:
        if header.lower() == "authorization":
            yield (*at, "headers", header), "holds a secret: use api_key_file or api_key_env"
    yield from header_faults((*at, "headers"), model.headers)


def _backend(at: Path, model: Model, known: Available) -> Faults:
    """Options that only some backends can follow."""
    if model.backend not in known.backends:
        wrong = Unknown("is not a backend", model.backend, known.backends, otherwise=listed(known.backends))
        yield (*at, "backend"), wrong
        return
    for option in ("prefill", "adapters", "kv_events"):
        if getattr(model, option) and option not in known.backends[model.backend]:
            able = sorted(name for name, options in known.backends.items() if option in options)
            yield (*at, option), f"needs backend {' or '.join(able)}"


def _other(facts: Facts, name: str, at: Path, other: str) -> Faults:
    """Faults of `other`, which the option at `at` of the model `name` gives as another model."""
    if other not in facts.config.model_names:
        yield ("models", name, *at), Unknown("is not a model", other, facts.config.model_names)
    elif facts.config.resolve(other) == name:
        yield ("models", name, *at), "is the model itself"


def _fallback(facts: Facts, name: str, model: Model) -> Faults:
    targets: set[str] = set()
    for index, other in enumerate(model.fallback):
        yield from _other(facts, name, ("fallback", index), other)
        target = facts.config.resolve(other)
        if target in targets:
            yield ("models", name, "fallback", index), "is given twice"
        elif target is not None and target != name:
            targets.add(target)


def _split(facts: Facts, name: str, model: Model) -> Faults:
    total = 0.0
    for index, rule in enumerate(model.split):
        path = ("models", name, "split", index)
        yield from _other(facts, name, ("split", index, "model"), rule.model)
        for at, key in enumerate(rule.keys or ()):
            if key not in facts.config.keys and not facts.any_key:
                yield (*path, "keys", at), Unknown("is not a key", key, facts.config.keys)
        for header in rule.headers:
            if fault := header_name_fault(header):
                yield (*path, "headers", header), fault
        if rule.keys is None and not rule.headers:
            total += rule.share
            if total > 1 + 1e-9:
                yield (*path, "share"), "makes the shares more than 1"
