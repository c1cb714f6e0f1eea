"""`python -m tests.support.simulated`: the tests' worker as a process."""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys

import uvloop

from tests.support.simulated import control, faults, plan
from tests.support.simulated.options import Options
from tests.support.simulated.server import Simulated
from workers.registry import registry_of, until_stopped
from workers.simulated.cli import parser, record

_COMMAND = "python -m tests.support.simulated"


def main(argv: list[str]) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit status: 0, or 2 when it cannot start."""
    given = parser(
        _COMMAND,
        Options,
        description="The tests' worker: vLLM's OpenAI wire with scripts and faults.",
        epilog="\n".join(filter(None, (faults.__doc__, plan.__doc__, control.__doc__))),
    ).parse_args(argv)
    try:
        worker = Simulated(Options.of(given))
        worker.options.exit_on_die = True
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(worker, given))
    except (OSError, ValueError) as error:
        print(f"{_COMMAND}: {error}", file=sys.stderr)
        return 2
    return 0


async def _serve(worker: Simulated, given: argparse.Namespace) -> None:
    # Requests make no reference cycles, but the ledger keeps many objects alive: full collections would cost more CPU
    # than the requests.
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    async with worker:
        worker.options.port = worker.port
        await until_stopped(record(worker.options), given, registry_of(given), worker.load)
