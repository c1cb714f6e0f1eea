"""How the limits of somebody stand in Redis: what `dragoman limits` prints."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from gateway.config import Config
from gateway.core.errors import GatewayError
from gateway.limiting.addresses import canonical
from gateway.limiting.gate import Where, duration
from gateway.limiting.rules import rules
from gateway.limits import Limiter, Subject
from gateway.limits.model import RuleState
from gateway.limits.store_redis import RedisStore

_PATIENCE_S = 5.0
"""A person at a terminal waits longer for a server far away than a request does."""


def unseen(config: Config, subject: Subject) -> list[str]:
    """The limits of `config` that `table` could not look up, because `subject` leaves something open: a sentence for
    each."""
    found = []
    # The configuration says whether a key has a team; a token may name any.
    alone = subject.key in config.keys and subject.team is None
    for rule in rules(config):
        missing = [
            one
            for one in ("key", "team", "address")
            if (one in rule.scope or one in rule.match) and getattr(subject, one) is None
        ]
        wanted = [f"--{one}" for one in missing]
        counted = f"counts by {', '.join(rule.scope)}" if rule.scope else "counts all together"
        if alone and "team" in missing:
            found.append(f"limit '{rule.name}' {counted}: it does not apply to key {subject.key}, which has no team")
        elif wanted:
            found.append(f"limit '{rule.name}' {counted}: to see it, give {' and '.join(wanted)}")
    return list(dict.fromkeys(found))


async def table(config: Config, subjects: Sequence[Subject], *, forget: bool = False) -> list[str]:
    """How the limits of `subjects` stand in Redis, as lines for a terminal; with `forget` their counters are dropped
    first. Raises GatewayError while Redis cannot be asked: where it was looked for, and why."""
    where = Where.of(config)
    assert where.settings is not None
    subjects = [replace(one, address=one.address and canonical(one.address)) for one in subjects]
    settings = replace(where.settings, timeout=max(where.settings.timeout, _PATIENCE_S))
    limiter = Limiter(rules(config), RedisStore(settings, layout=where.layout, expected=where.replicas))
    await limiter.connect()
    try:
        rows: dict[tuple[str, str], RuleState] = {}
        for subject in subjects:
            if forget:
                await limiter.reset(subject)
            for state in (await limiter.inspect(subject)).states:
                whom = ", ".join(f"{one} {getattr(subject, one)}" for one in state.rule.scope) or "all"
                rows.setdefault((state.rule.name, whom), state)
    except GatewayError as error:
        addresses = ", ".join(settings.addresses)
        raise GatewayError(error.kind, f"{error.message}: {addresses}: {error.__cause__ or limiter.reason}") from None
    finally:
        await limiter.close()
    if not rows:
        known = [f"{one} {value}" for one in ("key", "team", "address") if (value := getattr(subjects[0], one))]
        return [f"no limit applies to {' of '.join(known) or 'requests of whom nothing is known'}"]
    lines = [("limit", "of", "used", "left", "resets in")]
    for (name, whom), state in rows.items():
        name += " (shadow)" if state.rule.shadow else ""
        lines.append(
            (name, whom, str(state.used), str(state.remaining), duration(round(state.reset_s * 1000)).decode())
        )
    wide = [max(len(line[column]) for line in lines) for column in range(5)]
    return [
        f"{name:{wide[0]}}  {whom:{wide[1]}}  {used:>{wide[2]}}  {left:>{wide[3]}}  {reset:>{wide[4]}}"
        for name, whom, used, left, reset in lines
    ]
