"""The registry of backends. To add one, add a file or package here and a line to the table. A test fails if the table
misses one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.backends.llamacpp import LlamaCpp
from gateway.backends.openai import OpenAI
from gateway.backends.tgi import Tgi
from gateway.backends.vllm import Vllm
from gateway.core.ports import Backend

REGISTRY: Mapping[str, Callable[[], Backend]] = {
    "openai": OpenAI,
    "vllm": Vllm,
    "llamacpp": LlamaCpp,
    "tgi": Tgi,
}


def create(name: str) -> Backend:
    """The backend `name`. Raises KeyError if unknown."""
    return REGISTRY[name]()
