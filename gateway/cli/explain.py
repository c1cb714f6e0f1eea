"""`dragoman explain`: which worker would take a request, and why, in a fleet that is idle and whole; or, by its record,
which worker had a request, and what became of it when its workers failed."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from gateway import backends, dialects
from gateway.auth import ANONYMOUS, Principal
from gateway.cli import CommandError
from gateway.cli.configured import config_option, dialect_name, of_caller, read, request_options
from gateway.cli.policies import Policies
from gateway.config import Aliases, Breaker, Config, Key, Queue
from gateway.config.routing import WorkerOptions
from gateway.core.errors import GatewayError
from gateway.core.failures import MEANINGS, Cause
from gateway.core.ports import Settings
from gateway.core.routing_facts import RoutingFacts
from gateway.fleet.pick import POLICIES
from gateway.fleet.pool import Pool
from gateway.fleet.worker import Worker
from gateway.kernel.other_models import OtherModels
from gateway.translation import offline

_WHY = {
    "stalled": "its worker stalled",
    "leaving": "its worker was leaving",
    "late": "the first token was late",
    "died": "its worker died",
    "silent": "its worker fell silent",
    "failed": "its worker failed",
    "ended": "only its end was missing",
}
ABOUT = (
    "It reads the configuration alone, and takes all workers to be idle and ready. With --record it explains a "
    "request of the past, from the log."
)


def options(parser: argparse.ArgumentParser) -> None:
    config_option(parser)
    parser.add_argument(
        "--from",
        dest="source",
        default="openai",
        type=dialect_name,
        choices=dialects.REGISTRY,
        help="the client's dialect (default: openai)",
    )
    parser.add_argument("--model", metavar="NAME", help="the model (default: the one that the body names)")
    request_options(parser)
    parser.add_argument("--key", metavar="NAME", help="the key that asks, by its name (default: none)")
    parser.add_argument(
        "--worker", metavar="URL", action="append", default=[], help="a worker that the configuration does not list"
    )
    parser.add_argument(
        "--seen", dest="earlier", metavar="FILE", action="append", help="the body of a request that was sent before"
    )
    parser.add_argument("--record", metavar="FILE", help="a log in JSON: explains its last request (default: a body)")


def run(options: argparse.Namespace) -> int:
    """Prints the worker, the reason, and what the policy knew of the prompt."""
    if options.record is not None:
        return _print_record(read(options.record))
    config = of_caller(options.config, options.key)
    try:
        ops = [_read(options, read(name)) for name in (*(options.earlier or ()), options.body)]
        asked = _model(config, options.model or ops[-1].model, config.keys.get(options.key))
        name, chance = _split(config, asked, options)
        pool = _pool(config, name, (*config.models[name].workers, *options.worker))
    except offline.Refused as refused:
        print(refused.response.body.decode(errors="replace"), file=sys.stderr)
        return 1
    except ValueError as error:
        raise CommandError(error) from None
    if name != asked:
        print(f"split: {asked} -> {name}")
    if chance:
        print("drawn: by chance, for this run")
    print(f"model: {name}")
    for guard in _guards(config, name, options.key):
        print(f"guard: {guard}")
    policies = Policies(config, name, options.key)
    if policies.names:
        print(f"policies: {', '.join(policies.names)}")
        try:
            policies.apply(ops[-1])
        except GatewayError as error:
            print(f"refused: {error.message}", file=sys.stderr)
            return 1
        if policies.changes:
            print(f"changed: {', '.join(policies.changes)}")
    prefill = config.models[name].prefill
    if prefill is not None:
        _print("prefill", _pool(config, name, prefill.workers), ops, options.header)
    _print("worker", pool, ops, options.header)
    model = config.models[name]
    if model.fallback:
        print(f"fallback: {', '.join(model.fallback)} (on {', '.join(model.fallback_on)})")
    return 0


def _print_record(log: bytes) -> int:
    record = None
    for line in log.splitlines():
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict) and found.get("event") == "request":
                record = found
    if record is None:
        raise CommandError(ValueError("there is no record of a request in it"))
    print(f"request: {record['id']}, {record['outcome']}" + (f" ({record['code']})" if record.get("code") else ""))
    if "reasons" in record:
        what = "workers failed, in order" if record["attempts"] else "workers are not ready"
        print(f"{what}: {', '.join(_failed(word) for word in record['reasons'])}")
    if not record["attempts"]:
        print("worker: none was asked")
        return 0
    print(f"model: {record['model']}")
    print(f"worker: {record['worker']}, the last of {record['attempts']} attempts")
    if "workers" in record:
        print(f"workers, in order: {', '.join(record['workers'])}")
    print(f"picked: {record['picked']}")
    if record.get("moved"):
        print(f"moved before its client had seen anything: {_reasons(record['moved'])}")
    if record.get("continued"):
        print(f"went on in mid-stream: {_reasons(record['continued'])}; {record['recomputed']} tokens computed again")
    if record.get("not_continued"):
        print(f"did not go on: {record['not_continued']} (docs/reliability.md has the reasons)")
    return 0


def _failed(word: str) -> str:
    """A reason, and what it says of the worker; the word alone if another version of the gateway wrote it."""
    with contextlib.suppress(ValueError):
        return f"{word} (it {MEANINGS[Cause(word)].text})"
    return word


def _reasons(codes: list[str]) -> str:
    return ", ".join(_WHY.get(code, code) for code in codes)


def _print(role: str, pool: Pool, ops: list[Any], headers: list[tuple[bytes, bytes]]) -> None:
    worker, routing = asyncio.run(_send(pool, ops, headers))
    print(f"{role}: {worker.address}")
    print(f"picked: {routing.picked}")
    if routing.prompt:
        print(f"prompt: about {routing.prompt} tokens, {routing.matched} of them sent there before")


def _read(options: argparse.Namespace, body: bytes) -> Any:
    dialect = dialects.create(options.source, Settings())
    return offline.read(dialect, body, headers=options.header)[1]


def _model(config: Config, asked: str | None, key: Key | None) -> str:
    found = None
    if asked is not None:
        own = Aliases(key.aliases).find(asked) if key is not None else None
        found = config.resolve(own or asked) or config.patterns.find(asked)
    if found is None and asked is None and len(config.models) == 1:
        found = next(iter(config.models))
    if found is None:
        raise ValueError("the body names no model of this configuration; there are " + ", ".join(config.models))
    return found


def _split(config: Config, asked: str, options: argparse.Namespace) -> tuple[str, bool]:
    """The model that a request for `asked` goes to, and whether chance decided."""
    if options.key is not None and options.key not in config.keys:
        raise ValueError("there is no such key; there are " + (", ".join(config.keys) or "none"))
    found = OtherModels.from_config(config, asked)
    if found is None or found.split is None:
        return asked, False
    drawn: list[float] = []

    def draw() -> float:
        drawn.append(random.random())
        return drawn[-1]

    who = ANONYMOUS
    if options.key is not None:
        key = config.keys[options.key]
        bounds = [one.models for one in (key, config.teams.get(key.team or "")) if one is not None]
        allowed = [{config.model_names[one] for one in models} for models in bounds if models is not None]
        who = Principal(options.key, models=frozenset(set.intersection(*allowed)) if allowed else None)
    chosen = replace(found.split, draw=draw).choose(options.header, who)
    return chosen or asked, bool(drawn)


def _guards(config: Config, model: str, key: str | None) -> Iterator[str]:
    """The guards of a request, with what each is shown."""
    for name, guard in config.guards.items():
        models = None if guard.models is None else [config.resolve(one) for one in guard.models]
        if (models is None or model in models) and (guard.keys is None or key in guard.keys):
            after = {"never": [], "whole": ["whole replies"], "windows": ["replies in windows"]}[guard.after]
            yield f"{name} ({' and '.join([*(['requests'] if guard.before else []), *after])})"


def _pool(config: Config, name: str, addresses: Sequence[str]) -> Pool:
    model = config.models[name]
    if not addresses:
        raise ValueError(f"the workers of {name} are found while the gateway runs: name them by --worker")
    workers = []
    for address in addresses:
        own = model.worker_options.get(address, WorkerOptions())
        worker = Worker(address, Breaker(), own.capacity or model.max_in_flight)
        worker.weight = own.weight
        worker.ready = True
        workers.append(worker)
    return Pool(
        workers,
        POLICIES[model.policy](),
        Queue(),
        0.5,
        clock=lambda: 0.0,
        sessions=frozenset(name.lower().encode() for name in config.routing.session_headers),
        salted=backends.create(model.backend).salts,
    )


async def _send(pool: Pool, ops: list[Any], headers: list[tuple[bytes, bytes]]) -> tuple[Worker, RoutingFacts]:
    """Each is over before the next; returns what became of the last."""
    for op in ops:
        routing = pool.routing(op, headers)
        worker = await pool.acquire((), 0, routing)
        pool.release(worker, routing)
    return worker, routing
