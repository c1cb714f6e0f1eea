"""Token counts of one request. Unknown is None, never 0."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Source = Literal["engine", "counted", "estimated"]


class Usage(Struct, frozen=True):
    """input and output in tokens; `cached` is the part of input that a prefix cache served, `reasoning` the part of
    output spent thinking. `source` says who counted: the engine, the gateway (token ids seen) or a rough estimate."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    reasoning: int | None = None
    source: Source = "engine"

    @property
    def total(self) -> int | None:
        if self.input is None or self.output is None:
            return None
        return self.input + self.output
