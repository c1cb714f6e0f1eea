"""Commands whose outputs are a terminal, in this process."""

from __future__ import annotations

import contextlib
import io
import os
from unittest.mock import patch

from gateway import cli
from tests.support.commands import CLEAN


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_a_terminal(*words: str, error: bool = False, **environ: str) -> str:
    """What the command writes to its standard output, with `error` to standard error."""
    out, err = Terminal(), Terminal()
    with (
        patch.dict(os.environ, {**CLEAN, "TERM": "xterm", **environ}, clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        cli.main(words)
    return (err if error else out).getvalue()
