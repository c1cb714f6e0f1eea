"""`dragoman keys new`: a new client key and its entry for the configuration."""

from __future__ import annotations

import argparse
import sys

from gateway.auth import new_key
from gateway.cli import COMMANDS, CommandError, subcommand


def options(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    what = "print a new key on standard error, once, and its entry for a keys file on standard output"
    new = subcommand(actions, "new", what, COMMANDS["keys"][1])
    new.add_argument("--name", required=True, help="the entry's name")
    new.add_argument("--team", help="the team that the key belongs to (default: none)")


def run(options: argparse.Namespace) -> int:
    try:
        key, entry = new_key(options.name, options.team)
    except ValueError as error:
        raise CommandError(error) from None
    # The key goes to standard error, so that `dragoman keys new >> keys.yaml` writes the entry alone.
    where = "a keys file or, indented, for `keys:` in gateway.yaml"
    print(f"The key, shown this once:\n\n  {key}\n\nStandard output has its entry, for {where}.\n", file=sys.stderr)
    print(entry.rstrip("\n"))
    return 0
