"""`dragoman translate`: what a worker would get for a request, and what the client would get for its reply."""

from __future__ import annotations

import argparse
import json
import sys

from gateway import backends, dialects
from gateway.cli import CommandError
from gateway.cli.configured import dialect_name, of_caller, read, request_options
from gateway.cli.policies import Policies
from gateway.config import Config
from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.ports import Capabilities, Settings
from gateway.translation import offline

ABOUT = (
    "It needs neither a gateway nor a worker. Standard error names the fields that are dropped. With --reply it "
    "prints what the client would get for a worker's answer."
)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from",
        dest="source",
        required=True,
        type=dialect_name,
        choices=dialects.REGISTRY,
        help="the client's dialect",
    )
    parser.add_argument("--to", dest="target", required=True, choices=backends.REGISTRY, help="the worker's backend")
    parser.add_argument(
        "--route", metavar="NAME", help="the dialect's route (default: the one that knows most of the body)"
    )
    parser.add_argument(
        "--model", metavar="NAME", default="model", help="the model's name for its workers (default: model)"
    )
    parser.add_argument("--stream", action="store_true", help="as if the client asked for a stream")
    parser.add_argument("--query", metavar="STRING", default="", help="the request's query string (default: none)")
    request_options(parser)
    parser.add_argument(
        "--policies", metavar="FILE", help="a configuration whose request policies apply to --model (default: none)"
    )
    parser.add_argument("--key", metavar="NAME", help="the key that asks, for its policies (default: none)")
    parser.add_argument(
        "--reply", metavar="FILE", help="print what the client would get for this reply; - needs --body (default: none)"
    )
    parser.add_argument("--status", metavar="N", type=int, help="the status of that reply (default: 200)")


def run(options: argparse.Namespace) -> int:
    """Prints the worker's requests or, with --reply, the client's reply."""
    if options.status is not None and options.reply is None:
        raise CommandError("--status is of a reply: it needs --reply")
    dialect = dialects.create(options.source, Settings())
    backend = backends.create(options.target)
    config = of_caller(options.policies, options.key) if options.policies is not None else Config()
    policies = Policies(config, options.model, options.key)
    try:
        request, op = offline.read(
            dialect, read(options.body), route=options.route, query=options.query.encode(), headers=options.header
        )
        op.stream = op.stream or options.stream
        crossing = offline.cross(dialect, request, op, backend, Capabilities(options.model), policies.apply)
        for one in (crossing.outgoing, *crossing.more):
            policies.finish(one, request.headers)
        if policies.changes:
            print("changed: " + ", ".join(policies.changes), file=sys.stderr)
        dropped = (*crossing.op.dropped, *crossing.outgoing.dropped)
        if dropped:
            print("dropped: " + ", ".join(dropped), file=sys.stderr)
        if options.reply is None:
            if (first := crossing.first) is not None:
                line = f"asked first, for the length of the prompt: {first.method} {first.path} {first.body.decode()}"
                print(line, file=sys.stderr)
            print("\n\n".join(map(_shown, (crossing.outgoing, *crossing.more))))
            return 0
        if crossing.more:
            words = f"{1 + len(crossing.more)} requests reach the worker: --reply is read as the reply to the first"
            print(words, file=sys.stderr)
        answer = Response(options.status or 200, [JSON_TYPE], read(options.reply))
        written, status = offline.reply(dialect, backend, crossing, answer), 0
        whole = not crossing.op.stream
    except offline.Refused as refused:
        written, status = refused.response.body, 1
        whole = any(name == JSON_TYPE[0] for name, _ in refused.response.headers)  # else it is a piece of a stream
        print(f"status {refused.response.status}", file=sys.stderr)
    except ValueError as error:
        raise CommandError(error) from None
    sys.stdout.flush()
    sys.stdout.buffer.write(written + b"\n" if whole and not written.endswith(b"\n") else written)
    sys.stdout.buffer.flush()
    return status


def _shown(request: Request) -> str:
    body = json.dumps(json.loads(request.body), indent=2, ensure_ascii=False)
    return f"{request.method} {request.path}\n\n{body}"
