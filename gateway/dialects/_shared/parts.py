"""Content parts where only words have a place, such as the output of a tool."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.messages import Audio, Image, Opaque, Part, Refusal, Text, Thinking, ToolCall


def divide(parts: Iterable[Part]) -> tuple[list[str], list[Part]]:
    """(the texts in `parts`, the images and sounds). Raises TypeError for parts of the assistant's turns."""
    texts: list[str] = []
    media: list[Part] = []
    for part in parts:
        match part:
            case Text():
                texts.append(part.text)
            case Image() | Audio():
                media.append(part)
            case ToolCall() | Thinking() | Refusal() | Opaque():
                raise TypeError(f"a {type(part).__name__} is neither words nor an image or sound")
    return texts, media
