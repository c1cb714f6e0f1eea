"""Faults within one model: options that contradict each other, or that its backend cannot follow."""

from __future__ import annotations

from gateway.config.available import Available, listed
from gateway.config.faults import Found, Path, Unknown
from gateway.config.model import Config, Model
from gateway.config.rules import header_faults, not_both, repeated


def each_model(config: Config, known: Available | None) -> Found:
    for name, model in config.models.items():
        at = ("models", name)
        yield from _workers(config, at, model)
        yield from _prefill(at, model)
        yield from _kv_events(at, model)
        yield from _outgoing(at, model)
        if model.adapters and model.paths is not None:
            yield (*at, "adapters"), "has no effect beside paths: workers are not asked for them"
        if known is not None:
            yield from _of_backend(at, model, known)


def _workers(config: Config, at: Path, model: Model) -> Found:
    found = model.discover
    if found is not None and not found.redis and found.dns is None:
        yield (*at, "discover"), "must say where: redis or dns"
    if found is not None and found.redis and config.redis is None:
        yield (*at, "discover", "redis"), "needs a section redis"
    if found is None and not model.workers:
        yield (*at, "workers"), "is required, unless there is discover"
    for index in repeated(model.workers):
        yield (*at, "workers", index), "is given twice"
    if found is None:
        addresses = set(_addresses(model))
        for address in model.worker_options:
            if address not in addresses:
                yield (*at, "worker_options", address), "is none of workers"


def _addresses(model: Model) -> tuple[str, ...]:
    """Of all workers that are written down, those for prompts too."""
    return model.workers + (model.prefill.workers if model.prefill is not None else ())


def _prefill(at: Path, model: Model) -> Found:
    if model.prefill is None:
        return
    for index in repeated(model.prefill.workers):
        yield (*at, "prefill", "workers", index), "is given twice"
    generating = set(model.workers)
    for index, address in enumerate(model.prefill.workers):
        if address in generating:
            yield (*at, "prefill", "workers", index), "is one of the model's workers, too"


def _kv_events(at: Path, model: Model) -> Found:
    if model.kv_events is None:
        for address, own in model.worker_options.items():
            if own.kv_events is not None:
                yield (*at, "worker_options", address, "kv_events"), "needs kv_events of the model"
        return
    if model.policy != "prefix":
        yield (*at, "kv_events"), f"has no effect with policy {model.policy}"
    if model.paths is not None and "/tokenize" not in model.paths:
        yield (*at, "kv_events"), "needs /tokenize among paths"


def _outgoing(at: Path, model: Model) -> Found:
    """How its workers are called."""
    yield from not_both(at, model, "api_key")
    may_join = model.discover is not None and model.discover.redis
    if model.ca_file and not may_join and not any(worker.startswith("https://") for worker in _addresses(model)):
        yield (*at, "ca_file"), "has no effect: none of the workers is https"
    for header in model.headers:
        if header.lower() == "authorization":
            yield (*at, "headers", header), "holds a secret: use api_key_file or api_key_env"
    yield from header_faults((*at, "headers"), model.headers)


def _of_backend(at: Path, model: Model, known: Available) -> Found:
    if model.backend not in known.backends:
        wrong = Unknown("is not a backend", model.backend, known.backends, otherwise=listed(known.backends))
        yield (*at, "backend"), wrong
        return
    if model.prefill is not None and model.backend not in known.kv_transfer:
        yield (*at, "prefill"), _needs(known.kv_transfer)
    if model.adapters and model.backend not in known.lora:
        yield (*at, "adapters"), _needs(known.lora)
    if model.kv_events is not None and model.backend not in known.kv_events:
        yield (*at, "kv_events"), _needs(known.kv_events)


def _needs(backends: frozenset[str]) -> str:
    return f"needs backend {' or '.join(sorted(backends))}"
