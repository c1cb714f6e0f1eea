"""`dragoman worker vllm`: launch vLLM's server, register it, drain it on SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from workers.registry import Lease, Registry, WorkerEntry, add_flags, advertised, ending, registry_of, wind_down
from workers.vllm.engine import Engine, Unable
from workers.vllm.facts import PROCESSORS, abilities, flag, takes_processors, telling


def parser() -> argparse.ArgumentParser:
    """Our own flags; all others are vLLM's."""
    out = argparse.ArgumentParser(
        prog="dragoman worker vllm",
        usage="%(prog)s --model MODEL [any vLLM flag] [options]",
        description="vLLM's OpenAI server as a worker of the fleet. Flags that are not listed here go to vLLM.",
        epilog="example: dragoman worker vllm --model Qwen/Qwen3-8B --register redis://redis:6379",
        allow_abbrev=False,
    )
    add = out.add_argument
    add_flags(out)
    add(
        "--python",
        default=os.environ.get("ENGINE_PYTHON") or sys.executable,
        help="interpreter that has vLLM ($ENGINE_PYTHON, else this one)",
    )
    add("--start-timeout", type=float, default=1800.0, help="seconds until the engine must be healthy (%(default)g)")
    add("--stock", action="store_true", help="load no logits processor of ours into the engine")
    return out


def main(argv: list[str]) -> int:
    """Run until SIGTERM or SIGINT. Returns 0 after a complete drain, 3 if the grace period ended first, 2 if it could
    not start, 1 if the engine ended by itself."""
    given, flags = parser().parse_known_args(argv)
    try:
        registry = registry_of(given)
        if not given.stock and flag(flags, "logits-processors") is None and takes_processors(flags):
            flags = [*flags, "--logits-processors", PROCESSORS]
        host = flag(flags, "host") or "0.0.0.0"
        port = int(flag(flags, "port") or 8000)  # vLLM's default
        if flag(flags, "uds") is not None:
            raise ValueError("--uds: a worker of the fleet listens on a port")
        if flag(flags, "disable-log-stats") is not None:
            raise ValueError("--disable-log-stats: without its load the worker cannot see when requests have ended")
        scheme = "https" if flag(flags, "ssl-certfile") else "http"
        shown = advertised(given, registry, scheme, host, port) if registry is not None else ""
    except (OSError, ValueError) as error:
        print(f"dragoman worker vllm: {error}", file=sys.stderr)
        return 2
    local = "127.0.0.1" if host == "0.0.0.0" else "[::1]" if host == "::" else f"[{host}]" if ":" in host else host
    key = flag(flags, "api-key") or os.environ.get("VLLM_API_KEY")
    engine = Engine(flags, python=given.python, address=f"{scheme}://{local}:{port}", api_key=key)
    return asyncio.run(_Worker(given, flags, engine, registry, shown).run())


def log(text: str) -> None:
    print(f"dragoman worker vllm: {text}", file=sys.stderr, flush=True)


class _Worker:
    def __init__(
        self, given: argparse.Namespace, flags: Sequence[str], engine: Engine, registry: Registry | None, address: str
    ) -> None:
        self._given = given
        self._flags = flags
        self._engine = engine
        self._registry = registry
        self._address = address

    async def run(self) -> int:
        stop, hurry = ending()
        lease: Lease | None = None
        try:
            self._engine.launch()
            died = asyncio.create_task(self._engine.ended())
            stopped = asyncio.create_task(stop.wait())
            ready = asyncio.create_task(self._engine.healthy())
            await asyncio.wait(
                (died, stopped, ready), timeout=self._given.start_timeout, return_when=asyncio.FIRST_COMPLETED
            )
            ready.cancel()
            if died.done():
                return self._dead(died.result())
            if stopped.done():
                return 0
            if not ready.done():
                log(f"the engine was not healthy within {self._given.start_timeout:g} s")
                return 2
            record = await self._record()
            if self._registry is not None:
                lease = Lease(self._registry, record, self._engine.load, lease_s=self._given.lease, log=log)
                await lease.join()
            models = ", ".join(record.models)
            print(f"listening on {self._engine.address} ({models}; vLLM {record.version})", flush=True)
            await asyncio.wait((died, stopped), return_when=asyncio.FIRST_COMPLETED)
            if died.done():
                return self._dead(died.result())
            return await self._drain(lease, died, hurry)
        except Unable as error:
            log(str(error))
            return 2
        except (OSError, ValueError) as error:
            log(f"the engine is not what it should be: {error}")
            return 1
        finally:
            if lease is not None:
                await lease.leave()
            await self._engine.stop()

    async def _record(self) -> WorkerEntry:
        cards = await self._engine.cards()
        sequences = flag(self._flags, "max-num-seqs")
        positional = next((word for word in self._flags[:1] if not word.startswith("-")), None)
        return WorkerEntry(
            self._address,
            tuple(card.id for card in cards),
            "vllm",
            await self._engine.version(),
            next((card.max_model_len for card in cards if card.max_model_len is not None), None),
            int(sequences) if sequences and sequences.isdigit() else None,
            abilities(self._flags, flag(self._flags, "model") or positional),
            telling(self._flags),
        )

    async def _drain(self, lease: Lease | None, died: asyncio.Task[int], hurry: asyncio.Event) -> int:
        log("draining")

        async def load() -> tuple[int, int]:
            return (0, 0) if died.done() else await self._engine.load()

        grace, hand_over = self._given.grace, self._given.hand_over
        whole = await wind_down(lease, load, grace_s=grace, hand_over_s=hand_over, hurry=hurry)
        if died.done():
            return self._dead(died.result())
        log("drained" if whole else "requests were still running")
        return 0 if whole else 3

    def _dead(self, status: int) -> int:
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        log(f"the engine {how}")
        return 1
