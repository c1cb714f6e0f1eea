"""The registry of backends. A new backend is a file or package here and a line in the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.backends.llamacpp import LlamaCpp
from gateway.backends.openai import OpenAI
from gateway.backends.tgi import Tgi
from gateway.backends.vllm import Vllm
from gateway.core.ports import Backend
from gateway.wire.openai.defaults import DEFAULTS, ReplyDefaults

REGISTRY: Mapping[str, Callable[[ReplyDefaults], Backend]] = {
    "openai": OpenAI,
    "vllm": Vllm,
    "llamacpp": LlamaCpp,
    "tgi": Tgi,
}


def create(name: str, defaults: ReplyDefaults = DEFAULTS) -> Backend:
    """The backend `name`; `defaults` stand in for what its workers do not say. Raises KeyError when there is none."""
    return REGISTRY[name](defaults)
