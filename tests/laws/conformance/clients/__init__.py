"""Clients as readers of bytes: what each dialect's own client would understand of a reply, streamed and whole.

Strict where the strictest recorded client is. Another dialect is another file here, with its `CLIENTS`; a test fails
while one is missing.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

from tests.laws.conformance.clients.heard import Client, Heard, HeardChoice, Turn

__all__ = ["CLIENTS", "TURNS", "Client", "Heard", "HeardChoice"]

_MODULES = {one.name: importlib.import_module(f"{__name__}.{one.name}") for one in pkgutil.iter_modules(__path__)}
CLIENTS: tuple[Client, ...] = tuple(client for found in _MODULES.values() for client in getattr(found, "CLIENTS", ()))
"""Of every dialect that generates."""
TURNS: Mapping[str, Callable[[list[Turn]], dict[str, Any]]] = {
    name: found.write_turns for name, found in _MODULES.items() if hasattr(found, "write_turns")
}
"""Dialect -> what makes a request of an agent's turns, for dialects with turns of another form than OpenAI's."""
