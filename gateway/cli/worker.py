"""`dragoman worker KIND`: starts a worker. `main` calls the worker itself; here is only what `--help` prints."""

from __future__ import annotations

import argparse

from gateway.cli import WORKERS

ABOUT = (
    "`simulated` answers without a model, for tests; `embedded` runs a small model on this machine's CPU; `vllm` "
    "runs vLLM, and has it join the registry of workers."
)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=WORKERS, help="`dragoman worker KIND --help` lists its options")


def run(options: argparse.Namespace) -> int:
    raise AssertionError("main hands a known kind of worker its own arguments")
