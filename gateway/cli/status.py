"""`dragoman status`: what a running gateway does, from its admin address, once or as a live view."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import time
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

import httpx
import msgspec

from gateway.cli import CommandError
from gateway.cli.admin_address import NOTHING, admin_address, no_answer, not_admin
from gateway.cli.colours import coloured
from gateway.cli.configured import config_option, configuration, key_in
from gateway.cli.terminal import view
from gateway.config import has_feature

if TYPE_CHECKING:
    from gateway.features.console.state import State

_TIMEOUT_S = 5.0
_ONCE_S = 1.0
"""Between the two states of a single view: rates need two."""
# ANSI: the alternate screen without a cursor, and back; the top left corner; the rest of the line, of the screen.
_ENTER, _LEAVE, _HOME, _REST, _BELOW = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l", "\x1b[H", "\x1b[K", "\x1b[J"
ABOUT = (
    "It asks the admin address (metrics.listen) for models, workers, teams and limits, and shows them until "
    "Ctrl-C; once, where its output is not a terminal."
)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url", help="the gateway's admin address, such as http://127.0.0.1:9090 (default: the configuration's)"
    )
    config_option(parser)
    parser.add_argument(
        "--key-file", metavar="FILE", help="the console's key, where there is one (default: the configuration's)"
    )
    parser.add_argument("--every", metavar="SECONDS", type=_seconds, default=2.0, help="between two looks (default: 2)")
    parser.add_argument("--once", action="store_true", help="print one view, as when the output is not a terminal")
    parser.add_argument("--json", action="store_true", help="print the state once, as JSON; see docs/console.md")


def run(options: argparse.Namespace) -> int:
    """Prints one view, or shows views until Ctrl-C."""
    if not has_feature("console"):
        raise CommandError("this installation lacks gateway/features/console, which has the state", 1)
    url, key = _address_and_key(options)
    with httpx.Client(timeout=_TIMEOUT_S, trust_env=False) as client:
        gateway = _Gateway(client, url, key, options.config)
        try:
            first = gateway.text()
            if options.json:
                print(first.decode())
            elif options.once or not sys.stdout.isatty():
                before = _decoder().decode(first)
                time.sleep(_ONCE_S)
                print("\n".join(map(coloured, view(before, gateway.state()))))
            else:
                _live(gateway, _decoder().decode(first), options.every)
        except KeyboardInterrupt:
            pass
    return 0


@cache
def _decoder() -> msgspec.json.Decoder[State]:
    from gateway.features.console.state import State  # the folder may have been deleted

    return msgspec.json.Decoder(State)


class _Gateway:
    """The source of the state. given: the configuration that the command was given, if it was."""

    def __init__(self, client: httpx.Client, url: str, key: str | None, given: str | None) -> None:
        self._client = client
        self._given = given
        self._url = url.rstrip("/") + "/status.json"
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    def text(self) -> bytes:
        """The state as it was sent, known to be one. Raises CommandError if there is none."""
        try:
            answer = self._client.get(self._url, headers=self._headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise CommandError(no_answer(self._url, type(error).__name__, self._given), 1) from None
        if answer.status_code != 200:
            what = "its gateway lacks gateway/features/console, which has the state"
            if answer.content != NOTHING:
                what = not_admin(self._url, self._given, "--url") or "give the console's key by --key-file"
            raise CommandError(f"{self._url} answers {answer.status_code}: {what}", 1)
        try:
            _decoder().decode(answer.content)
        except msgspec.MsgspecError:
            raise CommandError(f"{self._url} answers something else than a gateway's state", 1) from None
        return answer.content

    def state(self) -> State:
        return _decoder().decode(self.text())


def _live(gateway: _Gateway, before: State, every_s: float) -> None:
    """Views until Ctrl-C. While the gateway does not answer, the last view stays below the reason."""
    lines, state = view(None, before), before
    sys.stdout.write(_ENTER)
    try:
        while True:
            _draw(lines)
            time.sleep(every_s)
            try:
                before, state = state, gateway.state()
                lines = view(before, state)
            except CommandError as why:
                lines = [f"{why}", "", *view(None, state)]
    finally:
        with suppress(OSError):
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()


def _draw(lines: list[str]) -> None:
    wide, high = shutil.get_terminal_size()
    shown = [coloured(line[:wide]) + _REST for line in lines[: high - 1]]
    sys.stdout.write(_HOME + "\r\n".join(shown) + _BELOW)
    sys.stdout.flush()


def _address_and_key(options: argparse.Namespace) -> tuple[str, str | None]:
    """The admin address, and the console's key. Raises CommandError, ConfigError."""
    key = key_in(options.key_file) if options.key_file is not None else None
    if options.url is not None:
        return admin_address(options.url, None, "--url"), key
    config, _ = configuration(options.config, only=() if key is not None else ("console",))
    return admin_address(None, config, "--url"), key or (config.console.key if config.console.enabled else None)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not (math.isfinite(seconds) and 0.2 <= seconds <= 3600):
        raise argparse.ArgumentTypeError("must be from 0.2 to 3600")
    return seconds
