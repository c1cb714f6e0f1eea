"""The member `options`, which Ollama's API and the API that resembles it have in common."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.core.fields import Field, renamed
from gateway.wire.openai.requests.fields import SAMPLES

OPTIONS: Mapping[str, str] = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "seed", "stop")},
    **{name: name for name in ("presence_penalty", "frequency_penalty")},
    "repeat_penalty": "repetition_penalty",
    "num_predict": "max_tokens",
}
"""Member of `options` that workers have -> its name on vLLM's wire."""


def option_rows(notes: Mapping[str, str]) -> tuple[Field, ...]:
    """A row for each of `OPTIONS`, with its note."""
    return tuple(renamed(f"options.{name}", to, SAMPLES[to], notes.get(name, "")) for name, to in OPTIONS.items())
