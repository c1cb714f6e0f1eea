"""Azure AI Inference's clients."""

from __future__ import annotations

import json

from gateway.core.http import Response
from tests.laws.conformance.clients.heard import Client
from tests.laws.conformance.clients.openai import NO_STOP, hear_openai, read_openai


def refused_azure(response: Response) -> str:
    body = json.loads(response.body)
    assert body["status"] == response.status
    assert response.header(b"x-ms-error-code")
    message = body["message"]
    assert isinstance(message, str)
    return message


_AZURE = {**NO_STOP, "usage": "stream_options is no parameter of the specification"}


_AZURE_QUERY = b"api-version=2024-05-01-preview"


CLIENTS: tuple[Client, ...] = (
    Client(
        "azure_inference",
        "azure_inference",
        "chat",
        "/chat/completions",
        "chat",
        hear_openai,
        read_openai,
        refused_azure,
        "openai",
        _AZURE,
        query=_AZURE_QUERY,
        headers=[(b"extra-parameters", b"pass-through")],
    ),
)
