"""The effect of signals on `dragoman serve` before the server takes them over.

This module imports nothing of the gateway: importing that takes most of a second, in which Python's own handlers would
answer Ctrl-C with a traceback, and SIGHUP by dying.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM)
reload_wanted = False
"""SIGHUP came before there was a server. It then reloads as soon as it listens: the file may have been read already."""


def take_signals() -> None:
    """From now on SIGINT and SIGTERM end the process quietly with status 0, and SIGHUP is kept for later.

    Does nothing outside the main thread, which alone gets signals.
    """
    global reload_wanted
    reload_wanted = False
    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            signal.signal(number, _end)
        signal.signal(signal.SIGHUP, _keep)


def leave_signals() -> None:
    """The server has ended. Ignore what else comes: only the last log lines are left to write."""
    if threading.current_thread() is threading.main_thread():
        for number in (*ENDING, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


def _keep(number: int, frame: FrameType | None) -> None:
    global reload_wanted
    reload_wanted = True
