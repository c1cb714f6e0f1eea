"""A request of each dialect, by hand: what tests across dialects send."""

from __future__ import annotations

from typing import Any

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 10}

# dialect -> path, body without a model
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": ("/v1/chat/completions", CHAT),
    "azure": ("/azure/chat/completions?api-version=2024-05-01-preview", CHAT),
    "sagemaker": ("/sagemaker/endpoints/ep/invocations", CHAT),
    "ollama": ("/ollama/chat/completions", {**CHAT, "stream": False}),
    "friendli": ("/friendli/v1/chat/completions", CHAT),
}
