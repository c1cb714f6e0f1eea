"""Token counts of one request. An unknown count is None, never 0."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Source = Literal["engine", "counted", "estimated"]


class Usage(Struct, frozen=True):
    """Numbers of tokens.

    input      of the prompt
    output     of the reply
    cached     of the input, those that a prefix cache served
    stored     of the input, those that were added to a prefix cache
    reasoning  of the output, those spent on thinking
    source     who counted: the engine, the gateway by the token ids it saw, or a rough estimate
    """

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    reasoning: int | None = None
    source: Source = "engine"
    stored: int | None = None

    @property
    def total(self) -> int | None:
        if self.input is None or self.output is None:
            return None
        return self.input + self.output
