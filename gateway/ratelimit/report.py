"""The state of one caller's limits in Redis, as `dragoman limits` prints it."""

from __future__ import annotations

from collections.abc import Container, Sequence
from math import ceil
from time import monotonic

from msgspec.structs import replace

from gateway.config import Config, Redis
from gateway.core.errors import GatewayError
from gateway.core.money import shown
from gateway.ratelimit.addresses import canonical
from gateway.ratelimit.http import Where, duration
from gateway.ratelimit.kinds import BudgetRule
from gateway.ratelimit.limiter import SubjectLimiter
from gateway.ratelimit.model import LimitState, Subject
from gateway.ratelimit.plan import applies
from gateway.ratelimit.redis.call_deadlines import MOST
from gateway.ratelimit.redis.store import RedisStore
from gateway.ratelimit.rules import rules

_EXACT_S = 60.0
"""A time above it is printed in whole seconds."""
_ASKED = ("key", "team", "address", "end_user")
_PATIENCE_S = 5.0
"""Seconds. A person at a terminal can wait longer for a distant server than a request can."""


def unseen(config: Config, subject: Subject) -> list[str]:
    """A sentence for each limit of `config` that `table` could not look up, because `subject` does not say enough."""
    found = []
    # The configuration says whether a key has a team; a token may name any.
    alone = subject.key in config.keys and subject.team is None
    for rule in rules(config):
        missing = [one for one in _ASKED if (one in rule.scope or one in rule.match) and getattr(subject, one) is None]
        wanted = [f"--{one.replace('_', '-')}" for one in missing]
        counted = f"counts by {', '.join(rule.scope)}" if rule.scope else "counts all together"
        if alone and "team" in missing:
            found.append(f"limit '{rule.name}' {counted}: it does not apply to key {subject.key}, which has no team")
        elif wanted:
            found.append(f"limit '{rule.name}' {counted}: to see it, give {' and '.join(wanted)}")
    return list(dict.fromkeys(found))


def limit_names(config: Config, subjects: Sequence[Subject]) -> dict[str, bool]:
    """The limits that apply to one of `subjects`, each with whether it is a budget."""
    found = [rule for rule in rules(config) if any(applies(rule, one) for one in map(_counted, subjects))]
    return {rule.name: isinstance(rule, BudgetRule) for rule in found}


def _counted(subject: Subject) -> Subject:
    return replace(subject, address=subject.address and canonical(subject.address))


def patient_store(config: Config) -> RedisStore:
    """The counters of `config` for a person who waits. Redis has them."""
    where = Where.of(config)
    assert where.settings is not None
    patient = {"timeout_s": max(where.settings.timeout_s, _PATIENCE_S)}
    return RedisStore(where.settings.model_copy(update=patient), layout=where.layout, expected=where.replicas)


def failure(config: Config, why: object) -> str:
    """The server's addresses, and why it cannot be reached."""
    assert config.redis is not None
    return f"{', '.join(config.redis.server.addresses)}: {why}"


async def table(
    config: Config, subjects: Sequence[Subject], only: Container[str] | None = None, *, forget: bool = False
) -> tuple[list[tuple[str, ...]], float]:
    """(the state in Redis of the limits of `subjects`, the seconds of its slowest answer). The state is rows for a
    terminal, of which two columns are text; or one row that says that there are none. only: the names of those that
    are meant; None for all. `forget` deletes their counters first. Raises GatewayError, which names the server and the
    reason, if Redis cannot be reached."""
    store = patient_store(config)
    subjects = [_counted(one) for one in subjects]
    meant = [rule for rule in rules(config) if only is None or rule.name in only]
    limiter = SubjectLimiter(meant, store)
    await limiter.start(beats=False)
    slowest = 0.0
    try:
        rows: dict[tuple[str, str], LimitState] = {}
        for subject in subjects:
            if forget:
                await limiter.reset(subject)
            began = monotonic()
            states = await limiter.inspect(subject)
            slowest = max(slowest, monotonic() - began)
            for state in states:
                whom = ", ".join(f"{one} {getattr(subject, one)}" for one in state.rule.scope) or "all"
                rows.setdefault((state.rule.name, whom), state)
    except GatewayError as error:
        raise GatewayError(error.kind, f"{error.message}: {failure(config, error.__cause__ or store.reason)}") from None
    finally:
        await limiter.close()
    if not rows:
        known = [f"{one} {value}" for one in _ASKED if (value := getattr(subjects[0], one))]
        return [(f"no limit applies to {' of '.join(known) or 'requests of whom nothing is known'}",)], slowest
    lines: list[tuple[str, ...]] = [("limit", "of", "used", "left", "resets in")]
    for (name, whom), state in rows.items():
        name += " (shadow)" if state.rule.shadow else ""
        of = (lambda nano: f"{shown(nano)} {rule.currency}") if isinstance(rule := state.rule, BudgetRule) else str
        resets_s = state.reset_s if state.reset_s < _EXACT_S else ceil(state.reset_s)
        resets = duration(round(resets_s * 1000)).decode()
        lines.append((name, whom, of(state.used), of(state.remaining), resets))
    return lines, slowest


def too_late(settings: Redis, seconds: float) -> list[str]:
    """A sentence for an answer of Redis that took so many seconds, where gateways may not wait for such a one."""
    least = settings.timeout_s
    if seconds <= least:
        return []
    waits = f"gateways wait {least * 1000:g} ms, and up to {MOST * least * 1000:g} ms where answers are slow"
    counted = "dragoman_limits_alone_total counts requests that they decided alone"
    return [f"Redis took {seconds * 1000:.0f} ms to answer: {waits}; {counted}"]
