"""What the gateway promises about faults, load and attack, as promises.yaml has it."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct


class Promise(Struct):
    """options change it; proofs are rows of the scoreboard and tests, `path` or `path::name`."""

    promise: str
    proofs: list[str]
    options: list[str] = []


class Part(Struct):
    """The promises about one subject."""

    title: str
    promises: list[Promise]


def read() -> list[Part]:
    """All of them, in the order of the file."""
    return msgspec.yaml.decode(Path(__file__).with_name("promises.yaml").read_bytes(), type=list[Part])
