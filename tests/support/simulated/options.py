"""The options of the tests' worker, beyond those of `dragoman worker simulated`."""

from __future__ import annotations

from dataclasses import dataclass

from workers.simulated import options
from workers.simulated.options import option


@dataclass
class Options(options.Options):
    """Settings of one worker of the tests; the command line has one flag for each.

    kv_events_port, kv_replay_port   where it publishes what its prefix cache holds, as vLLM does, and sends that again
    """

    adapters: tuple[str, ...] = option((), "LoRA adapter that is loaded; may be repeated", "--adapter")
    strict_context: bool = option(False, "400 when prompt + max_tokens exceed the context, instead of a shorter reply")
    kv_transfer: bool = option(False, "hand computed prompts to other workers, and read theirs")
    kv_events_port: int | None = option(
        None, "publish what the prefix cache holds there; 0 takes a free port", type=int
    )
    kv_replay_port: int = option(0, "answer there listeners that missed events; 0 takes a free one")
    reasoning: bool = option(False, "replies think first, as with a reasoning parser")
    keep_alive_s: float = option(5.0, "idle seconds before a connection is closed; 0 closes after each reply")
    fault: str = option("", "a fault for every request, e.g. reset@5")
    ledger: int = option(10_000, "requests to remember; 0 remembers none, and counts all the same")
    exit_on_die: bool = option(False, "the fault `die` ends the process, as it always does on the command line")
