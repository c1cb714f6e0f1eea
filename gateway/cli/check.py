"""`dragoman check`: everything that is wrong with a configuration, and what its models cannot do."""

from __future__ import annotations

import argparse
import asyncio
import sys

import uvloop

from gateway import backends
from gateway.app.probing import probe
from gateway.app.routes import active_dialects
from gateway.cli import CommandError, rendered
from gateway.cli.colours import coloured
from gateway.cli.configured import config_option, configuration, read
from gateway.cli.policies import impossible
from gateway.config import Config, Model
from gateway.core.ports import Dialect
from gateway.ratelimit import rules
from gateway.translation import offline

_WITHOUT_OUTPUT = frozenset(["embeddings", "scores"])
ABOUT = (
    "It names each fault with its line. The exit status is 2 for a fault, 1 for a warning with --strict or for a "
    "worker that cannot serve with --probe. Nothing is changed, and no gateway has to run."
)


def options(parser: argparse.ArgumentParser) -> None:
    config_option(parser).add_argument(
        "--rendered",
        metavar="MANIFESTS",
        help="the manifests that `helm template` prints, or - for standard input: each gateway.yaml in them, "
        "without the secrets that only a Pod has (default: a file)",
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit with status 1 for warnings, and for holes if they are listed"
    )
    parser.add_argument(
        "--holes",
        action="store_true",
        help="list what a client API offers and a model's workers refuse (default: count)",
    )
    parser.add_argument(
        "--probe", action="store_true", help="ask each worker, too; exit with status 1 unless all of them can serve"
    )


def run(options: argparse.Namespace) -> int:
    """Prints faults (status 2) or, of a good configuration, its warnings (status 0; 1 with --strict), with --holes what
    its models lack, and with --probe the state of its workers (status 1 if one cannot serve)."""
    if options.rendered is not None:
        if options.probe:
            raise CommandError("--probe asks workers with their secrets, which --rendered does without")
        checked = rendered.configurations(read(options.rendered))
        return max(_report(config, name, options) for name, config in checked)
    config, path = configuration(options.config)
    return _report(config, path or "environment", options)


def _report(config: Config, name: str, options: argparse.Namespace) -> int:
    """Prints what is to report of a good configuration, and returns the exit status."""
    offered = active_dialects(config)
    holes = _holes(config, offered)
    found, mixed = _probed(config) if options.probe else ([], [])
    warnings = [*_warnings(config, offered), *mixed]
    for hole in holes if options.holes else []:
        _print(f"hole: {hole}")
    for _, text in found:
        _print(f"worker: {text}")
    for text in warnings:
        _print(f"warning: {text}")
    held = ", ".join(
        _counted(len(what), name)
        for what, name in ((config.models, "model"), (config.keys, "key"), (offered, "dialect"))
    )
    down = sum(not serves for serves, _ in found)
    but = [f"{down} of {_counted(len(found), 'worker')} cannot serve"] if down else []
    but += [_counted(len(warnings), "warning")] if warnings else []
    hint = "" if options.holes else " (parts of client APIs that workers refuse: --holes lists them)"
    but += [_counted(len(holes), "hole") + hint] if holes else []
    if down or (options.strict and (warnings or (holes and options.holes))):
        print(f"{name}: {held}: {' and '.join(but)}", file=sys.stderr)
        return 1
    print(coloured(f"{name}: {held}: good" + (f", but for {' and '.join(but)}" if but else "")))
    return 0


def _print(line: str) -> None:
    print(coloured(line, sys.stderr), file=sys.stderr)


def _probed(config: Config) -> tuple[list[tuple[bool, str]], list[str]]:
    """Whether each worker can serve now, and a sentence about it; and one about each model whose workers serve it by
    different names: as a rule one of their addresses is another model's."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        fleets = runner.run(probe(config))
    found = []
    for (model, address), worker in fleets.workers.items():
        wanted, text = fleets.models[model].declared.upstream_model, "ready"
        if worker.trouble is not None:
            text = f"down: {worker.reason}: the worker {worker.meaning}"
        if worker.served_as is not None:
            text += f"; it serves {worker.served_as}, and not {wanted}: requests are sent there by that name"
        elif worker.serves:
            listed = ", ".join(worker.serves)
            text += (
                f"; it lists {listed}, and not {wanted}: requests are sent by the latter"
                if worker.ready
                else f"; it serves {listed}, and not {wanted}: set `upstream_model` to one of those"
            )
        found.append((worker.ready, f"{model} {address}: {text}"))
    found += [
        (False, f"{name}: none is known")
        for name in config.models
        if not any(model == name for model, _ in fleets.workers)
    ]
    named = {model: fleet.names for model, fleet in fleets.models.items() if len(fleet.names) > 1}
    return found, [
        f"{model}: its workers serve different names: "
        + ", ".join(f"{name} ({', '.join(addresses)})" for name, addresses in names.items())
        for model, names in named.items()
    ]


def _holes(config: Config, offered: list[Dialect]) -> list[str]:
    """Offers of a dialect that a model's workers cannot keep, one sentence each."""
    holes = []
    for dialect in offered:
        # Models whose workers are alike have the same holes: finding them takes milliseconds for each dialect.
        known: dict[tuple[str, int | None, frozenset[str] | None], dict[str, str]] = {}
        for name, model in config.models.items():
            alike = model.backend, model.max_context, model.features
            if alike not in known:
                known[alike] = offline.holes(dialect, backends.create(model.backend), model.declared(name))
            holes += [
                f"{dialect.name} {operation}, model {name} ({model.backend}): {what}"
                for operation, what in known[alike].items()
            ]
    return holes


def _warnings(config: Config, offered: list[Dialect]) -> list[str]:
    """Options that a model cannot keep, one sentence each."""
    found = [*config.former]
    if config.cache_salt is not None:
        found += [
            f"cache_salt, model {name} ({model.backend}): all callers share what its workers cache"
            for name, model in config.models.items()
            if not backends.create(model.backend).salts
        ]
    found += [
        f"fallback_on context_length, model {name}: no fallback has a longer context"
        for name, model in config.models.items()
        if model.fallback and "context_length" in model.fallback_on and not _longer(config, model)
    ]
    return [*found, *impossible(config, offered), *_small_limits(config)]


def _small_limits(config: Config) -> list[str]:
    """Token limits that one request without an output cap uses up, because it reserves a model's whole context."""
    found: dict[str, None] = {}
    limits = [
        (rule.name, rule.limit, tuple(rule.match.get("model", ())))
        for rule in rules(config)
        if rule.kind == "tokens" and not rule.shadow and rule.reserve == "maximum"
    ]
    for limit_name, limit, matched in dict.fromkeys(limits):  # thousands of keys may have the same one
        for name, model in config.models.items():
            context = model.max_context
            if context is None or limit > context or (matched and name not in matched):
                continue
            if model.features is None or not model.features <= _WITHOUT_OUTPUT:
                found[
                    f"limit {limit_name}, model {name}: a request without max_tokens reserves all of the limit of "
                    f"{limit}, which is not above max_context ({context})"
                ] = None
    return list(found)


def _longer(config: Config, model: Model) -> bool:
    """Whether a fallback may have a longer context than `model`."""
    others = [config.models[config.model_names[name]].max_context for name in model.fallback]
    return model.max_context is None or any(other is None or other > model.max_context for other in others)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
