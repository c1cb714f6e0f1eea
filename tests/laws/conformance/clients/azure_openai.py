"""Azure OpenAI's clients: OpenAI's replies under other paths."""

from __future__ import annotations

from tests.laws.conformance.clients.heard import Client
from tests.laws.conformance.clients.openai import OPENAI

_AT = {"deployment": "m"}
CLIENTS: tuple[Client, ...] = (
    Client("azure_openai chat", "azure_openai", "chat", "/deployments/m/chat/completions", "chat", *OPENAI, params=_AT),
    Client(
        "azure_openai completions",
        "azure_openai",
        "complete",
        "/deployments/m/completions",
        "complete",
        *OPENAI,
        params=_AT,
    ),
)
