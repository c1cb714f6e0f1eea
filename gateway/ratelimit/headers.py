"""The forms of headers about limits: the common one, that of a dialect, and that of the IETF's draft.

Sources: https://platform.claude.com/docs/en/api/rate-limits and
https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/11/.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from math import ceil
from time import time

from gateway.config.sharing import Limiter
from gateway.core.http import Headers
from gateway.moments import iso
from gateway.ratelimit.kinds import KINDS
from gateway.ratelimit.model import Limited, LimitState, tightest

_PARTS = ("limit", "remaining", "reset")


class _Every:
    def __contains__(self, _: object) -> bool:
        return True


class Forms:
    """The headers that `options` ask for. own: the beginning of a dialect's own names, of those that have some.

    common   whether replies of all dialects have the common ones
    further  the dialects whose replies have others, or lack the common ones
    """

    def __init__(self, options: Limiter, own: Mapping[str, bytes]) -> None:
        self.common = options.common_headers
        self._draft = options.draft_headers
        self._own = {name: _names(prefix) for name, prefix in own.items() if options.own_headers}
        self.further: Container[str] = _Every() if self._draft or not self.common else self._own

    def write(self, dialect: str, states: Sequence[LimitState], limited: Limited | None, headers: Headers) -> None:
        """Writes all but the common ones, about the limits of a request that was refused by an error, or admitted
        (None)."""
        if (names := self._own.get(dialect)) is not None:
            _write_own(names, states, limited, headers)
        if self._draft:
            _write_draft(states, limited, headers)


def _names(prefix: bytes) -> dict[str, tuple[bytes, bytes, bytes]]:
    """Kind -> a dialect's names of its three headers. There are none for requests in flight."""
    shown = [kind for kind, what in KINDS.items() if what.shown]
    return {kind: tuple(prefix + f"{kind}-{one}".encode() for one in _PARTS) for kind in shown}  # type: ignore[misc]


def _write_own(
    names: Mapping[str, tuple[bytes, bytes, bytes]],
    states: Sequence[LimitState],
    limited: Limited | None,
    headers: Headers,
) -> None:
    """About the limit of each kind with the least remaining. A reset of the limit that refused is never before the end
    of `retry-after`."""
    now = time()
    for kind, (limit, remaining, reset) in names.items():
        state = tightest(states, kind)
        if state is not None:
            refused = limited is not None and state is limited.violated
            free_s = max(state.reset_s, _again_s(limited) or 0) if refused else state.reset_s
            headers += (
                (limit, b"%d" % state.limit),
                (remaining, b"%d" % state.remaining),
                (reset, iso(ceil(now + free_s), "seconds").encode()),
            )


def _write_draft(states: Sequence[LimitState], limited: Limited | None, headers: Headers) -> None:
    """About all limits that are counted in requests or tokens; of those of one name about that with the least
    remaining. No time is behind the end of `retry-after`."""
    found: dict[str, LimitState] = {}
    for state in states:
        before = found.get(state.rule.name)
        if not state.rule.shadow and (before is None or state.remaining < before.remaining):
            found[state.rule.name] = state
    again_s = _again_s(limited)
    policies, left = [], []
    for name, state in found.items():
        rule, unit = state.rule, KINDS[state.rule.kind].unit
        if unit is None:
            continue
        policy, now = f'"{name}";q={state.limit}', f'"{name}";r={state.remaining}'
        if unit != "requests":
            policy += f';qu="{unit}"'
        if unit != "concurrent-requests":
            policy += f";w={int(rule.per_s)}" if rule.per_s == int(rule.per_s) else ""
            now += f";t={ceil(state.reset_s if again_s is None else min(state.reset_s, again_s))}"
        policies.append(policy)
        left.append(now)
    if policies:
        headers.append((b"ratelimit-policy", ", ".join(policies).encode()))
        headers.append((b"ratelimit", ", ".join(left).encode()))


def _again_s(limited: Limited | None) -> int | None:
    """The seconds in `retry-after`."""
    return None if limited is None or limited.retry_after is None else ceil(limited.retry_after)
