"""The configuration that a command is given or finds, and requests from files."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Container
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from gateway.auth import options_of
from gateway.auth.key_mirror import Known
from gateway.auth.key_store import KeyStore, StoreDown, decoded, decoded_team
from gateway.cli import CommandError
from gateway.config import Config, ConfigError, Key, Team, config_file, load
from gateway.config.former import FORMER
from gateway.redis import connect

T = TypeVar("T")
FILE_HELP = "gateway.yaml (default: $DRAGOMAN_CONFIG, else ./gateway.yaml)"
_NO_FILE = (
    "dragoman: no configuration file: give --config FILE, set DRAGOMAN_CONFIG, or start in a folder with a gateway.yaml"
)


def config_option(parser: argparse.ArgumentParser, text: str = FILE_HELP) -> argparse._MutuallyExclusiveGroup:
    """Adds `--config FILE`, and FILE alone for those who leave the word out, to a command without another argument."""
    named = parser.add_mutually_exclusive_group()
    named.add_argument("config", nargs="?", metavar="FILE", default=argparse.SUPPRESS, help=text)
    named.add_argument("--config", metavar="FILE", help="the same")
    return named


def dialect_name(given: str) -> str:
    """The type of an option that names a dialect, which may be by a former name until the next minor version."""
    if given in FORMER:
        print(f"dragoman: warning: the dialect {given} is called {FORMER[given]} now", file=sys.stderr)
    return FORMER.get(given, given)


def configuration(
    given: str | None, processes: int = 1, only: Container[str] | None = None
) -> tuple[Config, str | None]:
    """The configuration, and the file it was read from; None if it is from the environment alone. processes: how many
    will serve by it together. only: as for `load`.

    Raises `ConfigError`.
    """
    from gateway.app import KNOWN  # the whole gateway: a shell that completes options does not wait for it

    path = given if given is not None else config_file()
    try:
        return load(path, replace(KNOWN, processes=processes), only=only), path
    except ConfigError as error:
        if path is not None:
            raise
        print(_NO_FILE, file=sys.stderr)
        # Without a file there are no models, of course: that fault would only repeat the line above.
        faults = [fault for fault in error.faults if fault.position.path != ("models",)]
        raise ConfigError(faults, error.partial) from None


def of_caller(path: str | None, key: str | None) -> Config:
    """The configuration, of whose files and secrets only those are read by which `key` and its team are known. Raises
    CommandError if its store of keys is away."""
    config = with_stored(configuration(path, only=("keys_file", "redis") if key else ())[0], key)
    return with_team(config, config.keys[key].team if key in config.keys else None)


def with_stored(config: Config, name: str | None) -> Config:
    """`config`, with the key `name` of its store beside its own keys. Raises CommandError if the store is away."""
    if name is None or name in config.keys:
        return config
    key = _from_store(config, lambda store: store.find(name))
    if key is None or key.revoked is not None:
        return config
    return config.model_copy(update={"keys": {**config.keys, name: Key(hash=key.hash, **options_of(key))}})


def with_team(config: Config, name: str | None) -> Config:
    """As `with_stored`, the team `name`."""
    if name is None or name in config.teams:
        return config
    team = _from_store(config, lambda store: store.find_team(name))
    if team is None or team.gone:
        return config
    return config.model_copy(update={"teams": {**config.teams, name: Team(**options_of(team))}})


def stored(config: Config) -> Known:
    """The keys and teams of the store that are not revoked or deleted. Raises CommandError if the store is away."""

    async def read(store: KeyStore) -> Known:
        keys = [decoded(text) async for page in store.pages() for _, text in page]
        teams = [decoded_team(text) async for page in store.pages("team") for _, text in page]
        return Known(
            [key for key in keys if key is not None and not key.gone],
            [team for team in teams if team is not None and not team.gone],
        )

    return _from_store(config, read) or Known()


def _from_store(config: Config, ask: Callable[[KeyStore], Awaitable[T]]) -> T | None:
    """None without a store of keys."""
    if config.keys_store is None or (redis := config.redis) is None:
        return None

    async def asked() -> T:
        store = KeyStore(redis.namespace, config.stored_keys.max_audit, connect(redis), redis.call_s)
        try:
            return await ask(store)
        finally:
            await store.close()

    try:
        return asyncio.run(asked())
    except StoreDown as down:
        raise CommandError(f"the store of keys cannot be reached: {down}", 1) from None


def read(name: str) -> bytes:
    """The content of a file, or of standard input for "-". Raises CommandError."""
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except (OSError, ValueError) as error:
        raise CommandError(error) from None


def key_in(name: str) -> str:
    """The key in a file. Raises CommandError."""
    key = read(name).decode("latin-1").strip()
    if not (key.isascii() and key.isprintable() and key):
        raise CommandError("--key-file holds no key: one line of printable ASCII")
    return key


def header(given: str) -> tuple[bytes, bytes]:
    """`NAME:VALUE` of the command line."""
    name, colon, value = given.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError("must be NAME:VALUE")
    return name.strip().lower().encode(), value.strip().encode()


def request_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options by which a command gets a request."""
    parser.add_argument(
        "--header", metavar="NAME:VALUE", action="append", type=header, default=[], help="a header of the request"
    )
    parser.add_argument("--body", metavar="FILE", default="-", help="the request's body (default: -, standard input)")
