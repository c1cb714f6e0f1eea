"""Frames of `application/vnd.amazon.eventstream`, as botocore reads them: it checks lengths and checksums."""

from __future__ import annotations

from typing import Any, NamedTuple

from botocore.eventstream import EventStreamBuffer


class Frame(NamedTuple):
    headers: dict[str, str]
    payload: bytes


def frames(stream: bytes) -> list[Frame]:
    """The frames of a whole stream. Raises botocore's errors, or AssertionError if it ends inside a frame."""
    buffer: Any = EventStreamBuffer()
    buffer.add_data(stream)
    found = [Frame(event.headers, event.payload) for event in buffer]
    assert sum(event_bytes(frame) for frame in found) == len(stream), "the stream ends inside a frame"
    return found


def event_bytes(frame: Frame) -> int:
    """The size of a frame, all of whose headers are texts."""
    return (
        16
        + sum(len(name.encode()) + len(text.encode()) + 4 for name, text in frame.headers.items())
        + len(frame.payload)
    )
