"""Rules, subjects, and what a limiter has left for them."""

from __future__ import annotations

from typing import Any

from gateway.config import Limit
from gateway.ratelimit import Subject

ANN = Subject(key="ann", team="red", model="m", address="192.0.2.1")


def requests(limit: int, **more: Any) -> Limit:
    return Limit(**{"name": "rpm", "kind": "requests", "limit": limit, **more})


def tokens(limit: int, **more: Any) -> Limit:
    return Limit(**{"name": "tpm", "kind": "tokens", "limit": limit, **more})


def slots(limit: int, **more: Any) -> Limit:
    return Limit(**{"name": "slots", "kind": "concurrency", "limit": limit, **more})
