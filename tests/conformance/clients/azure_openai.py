"""Azure OpenAI's clients: OpenAI's replies under other paths."""

from __future__ import annotations

from tests.conformance.clients.heard import Client
from tests.conformance.clients.openai import NO_STOP, hear_openai, read_openai, refused_openai

CLIENTS: tuple[Client, ...] = (
    Client(
        "azure_openai chat",
        "azure_openai",
        "chat",
        "/deployments/m/chat/completions",
        "chat",
        hear_openai,
        read_openai,
        refused_openai,
        "openai",
        NO_STOP,
        params={"deployment": "m"},
    ),
    Client(
        "azure_openai completions",
        "azure_openai",
        "complete",
        "/deployments/m/completions",
        "complete",
        hear_openai,
        read_openai,
        refused_openai,
        "openai",
        NO_STOP,
        params={"deployment": "m"},
    ),
)
