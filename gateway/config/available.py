"""What the program that loads a configuration has on offer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Available:
    """What the program that loads the configuration has on offer.

    dialects  name -> the path prefixes it answers under by default
    versioned  those of them whose requests name a version of their API
    backends  names
    handing   those of them whose workers can hand a computed prompt to another worker
    adapting  those of them whose workers name the LoRA adapters that they have loaded
    telling   those of them whose workers tell what is in their prefix caches
    tracing   says whether what traces need is installed
    processes  that serve together by this configuration and share no memory
    key_set   reads the text of a set of keys for tokens; raises ValueError saying what it "is" or "holds" instead
    """

    dialects: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    backends: frozenset[str] = frozenset()
    handing: frozenset[str] = frozenset()
    adapting: frozenset[str] = frozenset()
    telling: frozenset[str] = frozenset()
    versioned: frozenset[str] = frozenset()
    key_set: Callable[[str], object] | None = None
    tracing: Callable[[], bool] | None = None
    processes: int = 1


def listed(names: Collection[str]) -> str:
    """What a fault ends with, to say what there is."""
    return "; there are " + ", ".join(sorted(names)) if names else ""
