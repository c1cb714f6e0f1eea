"""Counts of one request: tokens, and seconds of sound. An unknown count is None, never 0."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from gateway.core.written import always

Source = Literal["engine", "counted", "estimated"]


class Usage(Struct, frozen=True, omit_defaults=True):
    """Numbers of tokens, and of seconds.

    input      of the prompt
    output     of the reply
    cached     of the input, those that a prefix cache served
    stored     of the input, those that were added to a prefix cache
    reasoning  of the output, those spent on thinking
    audio_s    seconds of sound that were read; absent where nobody counted any
    images     that were made; absent for others than requests for images
    source     who counted: the engine, the gateway by the token ids it saw, or a rough estimate
    """

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    reasoning: int | None = None
    source: Source = always("engine")
    stored: int | None = None
    audio_s: float | UnsetType = UNSET
    images: int | UnsetType = UNSET

    @property
    def total(self) -> int | None:
        if self.input is None or self.output is None:
            return None
        return self.input + self.output
