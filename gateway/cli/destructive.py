"""Commands that destroy something name it, ask first, and leave a line in the audit record."""

from __future__ import annotations

import argparse
import getpass
import socket
import sys
import time
from contextlib import suppress

from gateway.auth.key_store import Event, KeyStore, StoreDown
from gateway.cli import INTERRUPTED, CommandError
from gateway.config import Config
from gateway.redis import connect


def option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--yes", action="store_true", help="do not ask first, as without a terminal nobody can be asked"
    )


def confirm(what: str, options: argparse.Namespace) -> None:
    """Returns if the caller agrees to `what`, as a sentence. Raises CommandError."""
    if options.yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(f"nothing was changed: without a terminal, give --yes, and {what}")
    print(f"{what}. Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        print(file=sys.stderr)
        raise CommandError("nothing was changed", INTERRUPTED) from None
    if answer.strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was changed", 1)


async def note(config: Config, what: str, name: str, team: str | None, options: tuple[str, ...]) -> None:
    """Writes a line of the audit record, before the deed. Raises CommandError: what cannot be recorded is not done."""
    assert config.redis is not None  # the caller looked
    store = KeyStore(config.redis.namespace, config.stored_keys.max_audit, connect(config.redis), config.redis.call_s)
    try:
        await store.note(Event(time.time(), operator(), what, name, team, options))
    except StoreDown as down:
        message = f"nothing was changed: the audit record cannot be written: {down.__cause__ or down}"
        raise CommandError(message, 1) from None
    finally:
        await store.close()


def operator() -> str:
    """The user who runs the command, as far as the machine knows."""
    name = "?"
    with suppress(KeyError, OSError):  # a container's user may have no name
        name = getpass.getuser()
    return f"{name}@{socket.gethostname()}"
