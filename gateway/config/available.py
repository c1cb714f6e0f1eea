"""The offer of the program that loads a configuration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gateway.config.model import Config


class Member(Protocol):
    """A member of requests. key: one for names that mean the same; bounded: its value is a number, and the gateway
    knows those of requests; known: the gateway gives it a meaning."""

    key: str

    @property
    def bounded(self) -> bool: ...
    @property
    def known(self) -> bool: ...


@dataclass(frozen=True)
class Available:
    """The offer of the program that loads the configuration.

    dialects   name -> the path prefixes it answers under by default
    serves     (configuration, dialect, prefix) -> what the dialect serves there; no two dialects may serve the same
    versioned  the dialects whose requests name a version of their API
    backends   name -> the options of a model, of those that only some backends can follow, that this one can
    tracing    returns whether what traces need is installed
    buckets    returns whether what a bucket needs is installed
    processes  that serve together by this configuration and share no memory
    gateways   that serve by it, each a process or several on its own machine
    member     reads a member of requests by its name, with a value or without one. Raises ValueError saying what it
               "is" instead
    key_set    reads the text of a set of keys for tokens; raises ValueError saying what it "is" or "holds" instead
    """

    dialects: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    serves: Callable[[Config, str, str], Collection[str]] = lambda config, name, prefix: ()
    backends: Mapping[str, frozenset[str]] = field(default_factory=dict)
    versioned: frozenset[str] = frozenset()
    member: Callable[..., Member] | None = None
    key_set: Callable[[str], object] | None = None
    tracing: Callable[[], bool] | None = None
    buckets: Callable[[], bool] | None = None
    processes: int = 1
    gateways: int = 1


def listed(names: Collection[str]) -> str:
    """The end of a fault that names the choices."""
    return "; there are " + ", ".join(sorted(names)) if names else ""
