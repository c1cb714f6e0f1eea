"""Clients as readers of bytes: what each dialect's own client would understand of a reply, streamed and whole.

Strict where the strictest recorded client is. Another dialect is another file here, with its `CLIENTS`; a test fails
while one is missing.
"""

from __future__ import annotations

import importlib
import pkgutil

from tests.conformance.clients.heard import Client, Heard, HeardChoice

__all__ = ["CLIENTS", "Client", "Heard", "HeardChoice"]

CLIENTS: tuple[Client, ...] = tuple(
    client
    for module in pkgutil.iter_modules(__path__)
    for client in getattr(importlib.import_module(f"{__name__}.{module.name}"), "CLIENTS", ())
)
"""Of every dialect that generates."""
