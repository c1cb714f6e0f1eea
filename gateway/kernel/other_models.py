"""Other models for a request: where its model cannot answer (fallback), or as its operator splits the traffic."""

from __future__ import annotations

import random
from collections.abc import Callable
from hashlib import blake2b
from urllib.parse import quote

from msgspec import Struct

from gateway.auth import Principal
from gateway.config import Config, SplitRule
from gateway.core.errors import Busy, GatewayError, Kind
from gateway.core.failures import TRANSIENT
from gateway.core.http import Headers

UNAVAILABLE, OVERLOADED, CONTEXT_LENGTH = *TRANSIENT, "context_length"
SPLIT, CHOSEN = "split", "chosen"


class Split(Struct, frozen=True):
    """The requests of the model `name` that others answer.

    rules     without aliases
    sessions  headers in which clients name a session, lower case; None where all requests of a key stay together
    draw      a number from 0 to 1 by chance
    """

    name: str
    rules: tuple[SplitRule, ...]
    sessions: frozenset[bytes] | None
    draw: Callable[[], float] = random.random

    def choose(self, headers: Headers, principal: Principal) -> str | None:
        """The model that answers; None for `name` itself. A caller is never sent to a model that it may not use."""
        point: float | None = None
        passed = 0.0
        for rule in self.rules:
            if not rule.matches(headers, principal.key) or not principal.may_use(rule.model):
                continue
            if rule.share >= 1:
                return rule.model
            if point is None:
                point = self._point(headers, principal)
            passed += rule.share
            if point < passed:
                return rule.model
        return None

    def _point(self, headers: Headers, principal: Principal) -> float:
        """From 0 to 1, the same for all that stays together."""
        sticky = (
            principal.key.encode()
            if self.sessions is None
            else next((value for name, value in headers if name in self.sessions and value), None)
        )
        if sticky is None:
            return self.draw()
        digest = blake2b(sticky, digest_size=8, key=b"split", salt=blake2b(self.name.encode(), digest_size=16).digest())
        return int.from_bytes(digest.digest(), "big") / 2**64


class OtherModels(Struct, frozen=True):
    """The other models of one model. fallback: models in the order in which they are asked, for the reasons in `on`."""

    fallback: tuple[str, ...] = ()
    on: frozenset[str] = frozenset()
    split: Split | None = None

    @classmethod
    def from_config(cls, config: Config, name: str) -> OtherModels | None:
        """Those of the model `name`, aliases resolved; None if it has none."""
        options, names = config.models[name], config.model_names
        if not options.fallback and not options.split:
            return None
        split = None
        if options.split:
            rules = tuple(rule.model_copy(update={"model": names[rule.model]}) for rule in options.split)
            sessions = frozenset(header.lower().encode() for header in config.routing.session_headers)
            split = Split(name, rules, sessions if options.split_by == "session" else None)
        on = set(options.fallback_on)
        if "transient" in on:
            on.update(TRANSIENT)
        return cls(tuple(names[one] for one in options.fallback), frozenset(on), split)


NONE = OtherModels()


def reason_of(error: GatewayError) -> str | None:
    """Why another model may do better than the one that failed by `error`; None if it would not, or must not try."""
    if error.final:
        return None
    if error.kind is Kind.CONTEXT_LENGTH:
        return CONTEXT_LENGTH
    if error.kind is Kind.OVERLOADED or isinstance(error, Busy):
        return OVERLOADED
    meaning = error.meaning
    if error.kind is Kind.NO_WORKER:
        return UNAVAILABLE if meaning is None else meaning.word
    return meaning.word if meaning is not None and error.retryable else None


def routed_headers(model: str, why: str) -> Headers:
    """The headers that name the model that answered."""
    return [(b"x-dragoman-model", quote(model, safe="/:@+,;=~!$*()").encode()), (b"x-dragoman-routed", why.encode())]
