"""The dialects on offer. Adding one is a file here and a line in the table; a test fails while anything is missing."""

from __future__ import annotations

from gateway.core.ports import Dialect, Settings
from gateway.dialects.openai import OpenAI

REGISTRY = {
    "openai": OpenAI,
}


def create(name: str, settings: Settings) -> Dialect:
    """The dialect `name`. Raises KeyError when there is none."""
    return REGISTRY[name](settings)
