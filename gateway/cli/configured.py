"""The configuration that a command works with: the file it is given, or the one that is found."""

from __future__ import annotations

import sys
from dataclasses import replace

from gateway.app import KNOWN
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
        raise ConfigError(fault for fault in error.faults if fault.key != "models" or fault.line) from None
