"""`dragoman worker simulated`: the simulated worker as a process."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

from workers.registry import Registry, WorkerEntry, add_flags, registry_of, until_stopped
from workers.serving import bound, server
from workers.simulated.options import Options
from workers.simulated.server import Simulated

_COMMAND = "dragoman worker simulated"
_PURPOSE = "A worker that speaks vLLM's OpenAI wire, without a model: to try configurations and to size gateways."


def parser(command: str, kind: type[Options], **described: Any) -> argparse.ArgumentParser:
    """The flags: one for each option, and those of a worker that can register."""
    out = argparse.ArgumentParser(prog=command, formatter_class=argparse.RawDescriptionHelpFormatter, **described)
    kind.add_flags(out)
    add_flags(out)
    return out


def main(argv: list[str]) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit status: 0, or 2 when it cannot start."""
    example = f"example: {_COMMAND} --port 8081 --itl-ms 20"
    given = parser(_COMMAND, Options, description=_PURPOSE, epilog=example).parse_args(argv)
    try:
        asyncio.run(_serve(Options.of(given), given, registry_of(given)))
    except (OSError, ValueError) as error:
        print(f"{_COMMAND}: {error}", file=sys.stderr)
        return 2
    return 0


async def _serve(options: Options, given: argparse.Namespace, registry: Registry | None) -> None:
    worker = Simulated(options)
    listener = bound(options.host, options.port)
    options.port = listener.getsockname()[1]
    listening = asyncio.Event()
    front = server(worker, 0, listening.set)
    serving = asyncio.create_task(front.serve(sockets=[listener]))
    await listening.wait()
    try:
        await until_stopped(record(options), given, registry, worker.load)
    finally:
        front.should_exit = front.force_exit = True
        await serving


def record(options: Options) -> WorkerEntry:
    """The registry's record of a worker that listens on `options.port`."""
    address = f"http://{options.host}:{options.port}"
    return WorkerEntry(
        address, options.models, "simulated", "0.33.0", options.max_model_len, options.slots, {"tools": True}
    )
