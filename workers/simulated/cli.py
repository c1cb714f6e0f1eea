"""`dragoman worker simulated`: the simulated worker as a process."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import Awaitable, Callable

from workers import registry
from workers.simulated import control, faults, plan
from workers.simulated.options import Options
from workers.simulated.server import Simulated

_EXAMPLE = "example: dragoman worker simulated --port 8081 --itl-ms 20\n"


def parser() -> argparse.ArgumentParser:
    """The flags; each is a field of `Options`."""
    default = Options()
    out = argparse.ArgumentParser(
        prog="dragoman worker simulated",
        description="A worker that speaks vLLM's OpenAI wire, without a model: for tests, trials and benchmarks.",
        epilog="\n".join(filter(None, (_EXAMPLE, faults.__doc__, plan.__doc__, control.__doc__))),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = out.add_argument
    add("--host", default=default.host, help="address to listen on (%(default)s)")
    add("--port", type=int, default=8000, help="port; 0 takes a free one (%(default)s)")
    add("--model", action="append", metavar="NAME", help="served model name; may be repeated (sim)")
    add("--adapter", action="append", metavar="NAME", help="LoRA adapter that is loaded; may be repeated")
    add("--max-model-len", type=int, default=default.max_model_len, help="context length, tokens (%(default)s)")
    add("--strict-context", action="store_true", help="400 when prompt + max_tokens exceed the context")
    add("--prefill-us-per-token", type=float, default=0.0, help="time to read a prompt token, microseconds (0)")
    add("--itl-ms", type=float, default=0.0, help="time between two tokens of a reply, milliseconds (0)")
    add("--slots", type=int, default=default.slots, help="sequences that run at once (%(default)s)")
    add("--kv-blocks", type=int, default=default.kv_blocks, help="KV blocks of 16 tokens (%(default)s)")
    add("--no-prefix-cache", action="store_true", help="compute every prompt token")
    add("--kv-transfer", action="store_true", help="hand computed prompts to other workers, and read theirs")
    add("--kv-events-port", type=int, default=None, help="publish what the prefix cache holds there (nowhere)")
    add(
        "--kv-replay-port",
        type=int,
        default=0,
        help="answer there listeners that missed events; 0 takes a free one (0)",
    )
    add("--queue-limit", "--max-num-queued-reqs", type=int, default=None, help="requests that may wait before a 503")
    add("--loading-s", type=float, default=0.0, help="seconds of 503 after the start (0)")
    add("--output-tokens", type=int, default=0, help="natural length of a reply (0: 8 to 32, from the prompt)")
    add("--reasoning", action="store_true", help="replies think first")
    add("--token-details", action="store_true", help="report cached prompt tokens in usage")
    add("--embedding-dims", type=int, default=default.embedding_dims, help="length of an embedding (%(default)s)")
    add("--keep-alive-s", type=float, default=default.keep_alive_s, help="idle seconds before closing (%(default)s)")
    add("--fault", default="", help="a fault for every request, e.g. reset@5")
    add("--ledger", type=int, default=default.ledger, help="requests to remember (%(default)s)")
    registry.add_flags(out)
    return out


def main(argv: list[str]) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit status: 0, or 2 when it cannot start."""
    given = parser().parse_args(argv)
    try:
        place = registry.place_of(given)
    except (OSError, ValueError) as error:
        print(f"dragoman worker simulated: {error}", file=sys.stderr)
        return 2
    flags = {"register", "namespace", "redis_password_file", "redis_ca_file", "advertise", "grace", "lease"}
    settings = {name: value for name, value in vars(given).items() if name not in flags}
    settings["models"] = tuple(settings.pop("model") or ("sim",))
    settings["adapters"] = tuple(settings.pop("adapter") or ())
    settings["prefix_cache"] = not settings.pop("no_prefix_cache")
    options = Options(**settings, exit_on_die=True)
    try:
        faults.parse(options.fault)
    except ValueError as error:
        print(f"dragoman worker simulated: {error}", file=sys.stderr)
        return 2
    try:
        import uvloop  # not on every platform

        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    except ImportError:
        runner = asyncio.Runner()
    with runner:
        return runner.run(_serve(options, given, place))


async def _serve(options: Options, given: argparse.Namespace, place: registry.Place | None) -> int:
    # Requests make no reference cycles, but the ledger keeps many objects alive: full collections would cost more CPU
    # than the requests.
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    worker = Simulated(options)
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def signalled() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, signalled)
    try:
        await worker.start()
    except OSError as error:
        print(f"dragoman worker simulated: {options.host}:{options.port}: {error.strerror}", file=sys.stderr)
        return 2
    lease = None
    if place is not None:
        try:
            address = registry.advertised(given, place, "http", options.host, worker.port)
        except (OSError, ValueError) as error:
            print(f"dragoman worker simulated: {error}", file=sys.stderr)
            await worker.stop()
            return 2
        record = registry.WorkerEntry(
            address, options.models, "simulated", "0.33.0", options.max_model_len, options.slots, {"tools": True}
        )
        lease = registry.Lease(place, record, load_of(worker), lease_s=given.lease)
        await lease.join()
    print(f"listening on {worker.url}", flush=True)
    await stop.wait()
    if lease is not None:
        await registry.wind_down(lease, running_of(worker), grace_s=given.grace, hurry=hurry)
        await lease.leave()
    await worker.stop()
    return 0


def load_of(worker: Simulated) -> Callable[[], Awaitable[tuple[int, int]]]:
    """For the registry: how many sequences run and wait."""

    async def load() -> tuple[int, int]:
        return worker.engine.running, len(worker.engine.queue)

    return load


def running_of(worker: Simulated) -> Callable[[], Awaitable[int]]:
    """For the drain: requests that are not answered yet."""

    async def running() -> int:
        return worker.ledger.running

    return running
