"""`uvicorn gateway.asgi:app`: the gateway under any ASGI server, by the configuration that `dragoman serve` would find.
It serves less than that, and slower: docs/asgi.md."""

from __future__ import annotations

from gateway.app import KNOWN
from gateway.app.asgi import application
from gateway.config import Config, config_file, load


def _read() -> Config:
    """Raises ConfigError."""
    return load(config_file(), KNOWN)


app = application(_read)
