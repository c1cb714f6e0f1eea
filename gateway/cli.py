"""The command `dragoman`: serve, check, translate, schema, routes, keys, limits, worker."""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import io
import json
import socket
import sys
from collections.abc import Sequence
from importlib.metadata import version
from ipaddress import ip_address
from pathlib import Path

import uvloop

from gateway import backends, dialects, translate
from gateway.app import KNOWN, Gateway
from gateway.app.routes import active_dialects, route_table
from gateway.auth import ANONYMOUS, new_key
from gateway.config import Config, ConfigError, Listen, Watch, config_file, json_schema, load
from gateway.core.errors import GatewayError
from gateway.core.http import JSON_TYPE, Response
from gateway.core.ports import Capabilities, Settings
from gateway.limiting import table, unseen
from gateway.limits import Subject
from gateway.observe.log import Log
from gateway.redis import split_address
from gateway.server import Edge, Side, server

WORKERS = ("embedded", "simulated", "vllm")
_WHERE = "gateway.yaml (default: $DRAGOMAN_CONFIG, else ./gateway.yaml)"
_NO_FILE = "dragoman: no configuration file: give --config FILE, set DRAGOMAN_CONFIG, or start where a gateway.yaml is"
# What a reload cannot change: sockets that are bound.
_BOUND = (("listen", "host"), ("listen", "port"), ("metrics", "listen"))
# Between two looks at the files that say who may call.
_LOOK_S = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the process's exit status (2 for a fault of the caller)."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["worker"] and len(argv) > 1 and argv[1] in WORKERS:
        # A worker has options of its own, and needs nothing of the gateway.
        status: int = importlib.import_module(f"workers.{argv[1]}").main(argv[2:])
        return status
    options = _parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name may hold what this terminal has no character for
    try:
        status = options.run(options)
    except ConfigError as error:
        for fault in error.faults:
            print(fault, file=sys.stderr)
        status = 2
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dragoman", description="A gateway that lets any LLM client keep its own language."
    )
    parser.add_argument("--version", action="version", version=f"dragoman {version('dragoman')}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="run the gateway")
    serve.add_argument("--config", metavar="FILE", help=_WHERE)
    serve.set_defaults(run=_serve)

    check = commands.add_parser("check", help="say everything that is wrong with a configuration")
    named = check.add_mutually_exclusive_group()
    named.add_argument("file", nargs="?", metavar="FILE", help=_WHERE)
    named.add_argument("--config", metavar="FILE", help="the same")
    check.add_argument("--strict", action="store_true", help="fail where a dialect asks what a model cannot do")
    check.set_defaults(run=_check)

    crossing = commands.add_parser("translate", help="print what a worker would get of a request on standard input")
    crossing.add_argument(
        "--from", dest="source", required=True, choices=dialects.REGISTRY, help="the client's dialect"
    )
    crossing.add_argument("--to", dest="target", required=True, choices=backends.REGISTRY, help="worker's backend")
    crossing.add_argument(
        "--route", metavar="NAME", help="the dialect's route (default: that which knows most of the body)"
    )
    crossing.add_argument("--model", metavar="NAME", default="model", help="the model's name for its workers")
    crossing.add_argument("--stream", action="store_true", help="as if the client asked for a stream")
    crossing.add_argument("--query", metavar="STRING", default="", help="the request's query string")
    crossing.add_argument(
        "--header", metavar="NAME:VALUE", action="append", type=_header, default=[], help="one of its headers"
    )
    crossing.add_argument("--body", metavar="FILE", default="-", help="the request's body (default: -, standard input)")
    crossing.add_argument(
        "--reply", metavar="FILE", help="print what the client would get of this reply; - needs --body"
    )
    crossing.add_argument("--status", metavar="N", type=int, help="the status of that reply (default: 200)")
    crossing.set_defaults(run=_translate)

    schema = commands.add_parser("schema", help="print the JSON Schema of gateway.yaml, for editors")
    schema.set_defaults(run=_schema)

    routes = commands.add_parser("routes", help="list method, path and dialect of every route")
    routes.add_argument("--config", metavar="FILE", help="with this configuration's prefixes")
    routes.set_defaults(run=_routes)

    keys = commands.add_parser("keys", help="make client keys")
    actions = keys.add_subparsers(required=True, metavar="ACTION")
    new = actions.add_parser(
        "new", help="print a new key on standard error, once, and its entry for a keys file on standard output"
    )
    new.add_argument("--name", required=True, help="the entry's name")
    new.add_argument("--team", help="whose key it is")
    new.set_defaults(run=_new_key)

    limits = commands.add_parser("limits", help="show what a key has used of its limits, or forget it")
    actions = limits.add_subparsers(required=True, metavar="ACTION")
    for name, what in (
        ("show", "print every limit: used, left, and when it resets"),
        ("reset", "forget what show shows"),
    ):
        action = actions.add_parser(name, help=what)
        action.add_argument("--config", metavar="FILE", help=_WHERE)
        action.add_argument("--key", help="the key's name")
        action.add_argument("--team", help="default: the key's")
        action.add_argument("--model", help="default: all")
        action.add_argument("--address", type=_address, help="a client's IP address")
        action.set_defaults(run=_limits, forget=name == "reset")

    worker = commands.add_parser("worker", help="run a worker: " + ", ".join(WORKERS))
    worker.add_argument("kind", choices=WORKERS)
    return parser


def _check(options: argparse.Namespace) -> int:
    """Faults end it; holes, which are what is offered or asked for and a model's workers cannot do, are told."""
    config, path = _load(options.file or options.config)
    offered = active_dialects(config)
    holes = [
        hole
        for dialect in offered
        for name, model in config.models.items()
        for hole in translate.holes(
            dialect,
            name,
            backends.create(model.backend),
            Capabilities(model.upstream_model or name, model.max_context, model.features),
        )
    ]
    if config.cache_salt is not None:
        holes += [
            f"cache_salt, model {name} ({model.backend}): all callers share what its workers cache"
            for name, model in config.models.items()
            if not backends.create(model.backend).salts
        ]
    for hole in holes:
        print(f"hole: {hole}", file=sys.stderr)
    if holes and options.strict:
        return 1
    held = ", ".join(
        _counted(len(what), name)
        for what, name in ((config.models, "model"), (config.keys, "key"), (offered, "dialect"))
    )
    print(f"{path or 'environment'}: {held}: good" + (f", but for {_counted(len(holes), 'hole')}" if holes else ""))
    return 0


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _header(given: str) -> tuple[bytes, bytes]:
    name, colon, value = given.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError("must be NAME:VALUE")
    return name.strip().lower().encode(), value.strip().encode()


def _address(given: str) -> str:
    try:
        return str(ip_address(given))
    except ValueError:
        raise argparse.ArgumentTypeError("must be an IP address") from None


def _translate(options: argparse.Namespace) -> int:
    """The request that a worker would get; with --reply, what the client would get of its reply."""
    if options.status is not None and options.reply is None:
        print("dragoman: --status is of a reply: it needs --reply", file=sys.stderr)
        return 2
    dialect = dialects.create(options.source, Settings())
    backend = backends.create(options.target)
    try:
        crossing = translate.send(
            dialect,
            backend,
            _file(options.body),
            Capabilities(options.model),
            route=options.route,
            stream=options.stream,
            query=options.query.encode(),
            headers=options.header,
        )
        dropped = (*crossing.op.dropped, *crossing.outgoing.dropped)
        if dropped:
            print("dropped: " + ", ".join(dropped), file=sys.stderr)
        if options.reply is None:
            outgoing, first = crossing.outgoing, crossing.first
            if first is not None:
                said = f"asked first, for the length of the prompt: {first.method} {first.path} {first.body.decode()}"
                print(said, file=sys.stderr)
            print(f"{outgoing.method} {outgoing.path}\n")
            print(json.dumps(json.loads(outgoing.body), indent=2, ensure_ascii=False))
            return 0
        answer = Response(options.status or 200, [JSON_TYPE], _file(options.reply))
        written, status = translate.reply(dialect, backend, crossing, answer), 0
        whole = not crossing.op.stream
    except translate.Refused as refused:
        written, status = refused.response.body, 1
        whole = any(name == JSON_TYPE[0] for name, _ in refused.response.headers)  # else it is what was streamed
        print(f"status {refused.response.status}", file=sys.stderr)
    except (OSError, ValueError) as error:
        print(f"dragoman: {error}", file=sys.stderr)
        return 2
    sys.stdout.flush()
    sys.stdout.buffer.write(written + b"\n" if whole and not written.endswith(b"\n") else written)
    sys.stdout.buffer.flush()
    return status


def _file(name: str) -> bytes:
    return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()


def _schema(options: argparse.Namespace) -> int:
    print(json.dumps(json_schema(), indent=2))
    return 0


def _routes(options: argparse.Namespace) -> int:
    lines = route_table(load(options.config, KNOWN) if options.config else Config())
    wide = max(len(line.path) for line in lines)
    for line in lines:
        print(f"{line.method:6} {line.path:{wide}} {line.dialect}")
    return 0


def _new_key(options: argparse.Namespace) -> int:
    try:
        key, entry = new_key(options.name, options.team)
    except ValueError as error:
        print(f"dragoman: {error}", file=sys.stderr)
        return 2
    # Only the entry goes to a file that standard output is sent to: a key is stored nowhere.
    print(
        f"The key, shown this once:\n\n  {key}\n\nIts entry for `keys:` in gateway.yaml or a keys file:\n",
        file=sys.stderr,
    )
    print(entry.rstrip("\n"))
    return 0


def _limits(options: argparse.Namespace) -> int:
    config, _ = _load(options.config)
    if config.redis is None or config.limiter.store == "memory":
        print("dragoman: without redis every gateway counts in its own memory; see its /metrics", file=sys.stderr)
        return 2
    # Whom tokens name is their issuer's business.
    token = config.jwt is not None and (options.key or "").startswith("jwt:")
    known = config.keys if config.auth == "keys" else (ANONYMOUS.key,)
    if options.key is not None and options.key not in known and not token:
        print(f"dragoman: there is no key {options.key}", file=sys.stderr)
        return 2
    if options.model is not None and config.resolve(options.model) is None:
        print(f"dragoman: there is no model {options.model}", file=sys.stderr)
        return 2
    team = options.team or (config.keys[options.key].team if options.key in config.keys else None)
    models = [config.resolve(options.model)] if options.model is not None else [None, *config.models]
    subjects = [Subject(options.key, team, model, options.address) for model in models]
    try:
        lines = asyncio.run(table(config, subjects, forget=options.forget))
    except GatewayError as error:
        print(f"dragoman: {error.message}", file=sys.stderr)
        return 1
    print("\n".join(lines))
    for line in unseen(config, subjects[0]):
        print(f"dragoman: {line}", file=sys.stderr)
    return 0


def _load(given: str | None) -> tuple[Config, str | None]:
    """The configuration, and the file that it is from, if any."""
    path = given if given is not None else config_file()
    try:
        return load(path, KNOWN), path
    except ConfigError as error:
        if path is not None:
            raise
        print(_NO_FILE, file=sys.stderr)
        # That there are no models says nothing more than that.
        raise ConfigError(fault for fault in error.faults if fault.key != "models" or fault.line) from None


def _serve(options: argparse.Namespace) -> int:
    config, path = _load(options.config)
    places = [(config.listen.host, config.listen.port)]
    if config.metrics.listen is not None:
        places.append(split_address(config.metrics.listen))
    listeners = []
    for host, port in places:
        try:
            listeners.append(_listen(host, port))
        except OSError as error:
            print(f"dragoman: cannot listen on {host}:{port}: {error.strerror}", file=sys.stderr)
            return 1
    log = Log(config.log.level, config.log.requests)
    try:
        with log.libraries(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(config, path, listeners, log))
    finally:
        log.close()


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen(2048)
    listener.setblocking(False)
    return listener


def _edge(listen: Listen) -> Edge:
    return Edge(
        header_timeout_s=listen.header_timeout_s,
        body_timeout_s=listen.body_timeout_s,
        min_body_rate_bytes=listen.min_body_rate_bytes,
        write_idle_s=listen.write_idle_s,
        max_header_bytes=listen.max_header_bytes,
        max_header_count=listen.max_header_count,
        max_body_bytes=listen.max_body_bytes,
        max_connections=listen.max_connections,
    )


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _run(config: Config, path: str | None, listeners: Sequence[socket.socket], log: Log) -> int:
    """Serves clients on the first of `listeners` until told to end, and metrics on the second, if there is one."""
    gateway = Gateway(config, log)
    watch = Watch(config.caller_files)
    listener, *more = listeners

    async def reload() -> None:
        if gateway.draining:
            log.event("warning", "reload refused, the gateway is shutting down")
            return
        looked = watch.look()
        try:
            changed = load(path, KNOWN)
            watch.take(changed.caller_files, looked)
            await gateway.reload(changed)
        except ConfigError as error:
            gateway.metrics.reloads.labels("refused").inc()
            log.event("error", "reload refused, the old configuration stays", faults=[str(one) for one in error.faults])
        else:
            gateway.metrics.reloads.labels("done").inc()
            serving.configure(_edge(changed.listen), changed.listen.keep_alive_s)
            log.event("info", "reloaded")
            keys = [
                f"{section}.{key}"
                for section, key in _BOUND
                if getattr(getattr(changed, section), key) != getattr(getattr(config, section), key)
            ]
            if keys:
                log.event("warning", "a restart is needed for some changes to hold", keys=keys)

    async def drain() -> None:
        log.event("info", "draining")
        await gateway.drain()

    serving = server(
        gateway,
        _edge(config.listen),
        config.listen.keep_alive_s,
        drain,
        reload,
        gateway.refused,
        Side(gateway.operations, more[0]) if more else None,
    )

    async def announce() -> None:
        await serving.listening.wait()
        name = Path(path).name if path else None
        log.event(
            "info", "listening", address=_url(listener), config=name, **({"metrics": _url(more[0])} if more else {})
        )

    async def follow() -> None:
        """Whoever gives and takes keys in a mounted secret sends no signal."""
        while not gateway.draining:
            await asyncio.sleep(_LOOK_S)
            if watch.changed():
                log.event("info", "keys changed")
                await reload()

    announcing = asyncio.create_task(announce())
    following = asyncio.create_task(follow())
    # What lives as long as the process need not be looked at by every collection.
    gc.collect()
    gc.freeze()
    # A request leaves no cycles behind; looking for some after every 700 allocations costs 4 % of all CPU.
    gc.set_threshold(20_000, 20, 20)
    await serving.serve(sockets=[listener])
    announcing.cancel()
    following.cancel()
    log.event("info", "stopped")
    return 0 if serving.listening.is_set() else 1


if __name__ == "__main__":
    sys.exit(main())
