"""What the tests of the application share: a request, a model without a worker, a key, a way to wait."""

from __future__ import annotations

from typing import Any

import yaml

from gateway.auth import new_key

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
GONE = {"backend": "vllm", "workers": ["http://127.0.0.1:9"]}


FORGOTTEN = {"backend": "vllm", "upstream_model": "sim", "workers": ["http://127.0.0.1:9"]}
"""A model with nobody at its worker's address."""


def key(name: str, **options: Any) -> tuple[str, dict[str, Any]]:
    """A new key, and its part of the configuration."""
    secret, entry = new_key(name)
    loaded = yaml.safe_load(entry)
    loaded[name] |= options
    return secret, loaded
