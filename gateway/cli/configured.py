"""The configuration that a command is given or finds, and requests from files."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from gateway.app import KNOWN
from gateway.cli import CommandError
from gateway.config import Config, ConfigError, config_file, load

FILE_HELP = "gateway.yaml (default: $DRAGOMAN_CONFIG, else ./gateway.yaml)"
_NO_FILE = (
    "dragoman: no configuration file: give --config FILE, set DRAGOMAN_CONFIG, or start in a folder with a gateway.yaml"
)


def configuration(given: str | None, processes: int = 1) -> tuple[Config, str | None]:
    """The configuration, and the file it was read from; None if it is from the environment alone. processes: how many
    will serve by it together.

    Raises `ConfigError`.
    """
    path = given if given is not None else config_file()
    try:
        return load(path, replace(KNOWN, processes=processes)), path
    except ConfigError as error:
        if path is not None:
            raise
        print(_NO_FILE, file=sys.stderr)
        # Without a file there are no models, of course: that fault would only repeat the line above.
        raise ConfigError(fault for fault in error.faults if fault.position.path != ("models",)) from None


def read(name: str) -> bytes:
    """The content of a file, or of standard input for "-". Raises CommandError."""
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except (OSError, ValueError) as error:
        raise CommandError(error) from None


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
