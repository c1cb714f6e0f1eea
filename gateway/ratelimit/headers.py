"""The headers about limits that clients get beside OpenAI's: Anthropic's, and those of the IETF's draft.

Sources: https://platform.claude.com/docs/en/api/rate-limits and
https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/11/.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from math import ceil
from time import time

from gateway.config.sharing import LimitHeadersOf
from gateway.core.http import Headers
from gateway.moments import iso
from gateway.ratelimit.kinds import KINDS
from gateway.ratelimit.model import Limited, LimitState, tightest

_ANTHROPIC = {
    kind: tuple(f"anthropic-ratelimit-{kind}-{one}".encode() for one in ("limit", "remaining", "reset"))
    for kind, what in KINDS.items()
    if what.shown
}
"""Kind -> Anthropic's names of its three headers. Anthropic has none for requests in flight."""


class _Every:
    def __contains__(self, _: object) -> bool:
        return True


class Beside:
    """The headers of `forms` beside OpenAI's.

    openai    whether replies have OpenAI's
    dialects  those whose replies have others, or lack OpenAI's
    """

    def __init__(self, forms: Collection[LimitHeadersOf]) -> None:
        self.openai = "openai" in forms
        self._ietf = "ietf" in forms
        self._own = frozenset(("anthropic",)) & frozenset(forms)
        self.dialects: Container[str] = _Every() if self._ietf or not self.openai else self._own

    def write(self, dialect: str, states: Sequence[LimitState], limited: Limited | None, headers: Headers) -> None:
        """Writes them, about the limits of a request that was refused by an error, or admitted (None)."""
        if dialect in self._own:
            _write_anthropic(states, limited, headers)
        if self._ietf:
            _write_ietf(states, limited, headers)


def _write_anthropic(states: Sequence[LimitState], limited: Limited | None, headers: Headers) -> None:
    """About the limit of each kind with the least remaining. A reset of the limit that refused is never before the end
    of `retry-after`."""
    now = time()
    for kind, (limit, remaining, reset) in _ANTHROPIC.items():
        state = tightest(states, kind)
        if state is not None:
            refused = limited is not None and state is limited.violated
            free_s = max(state.reset_s, _again_s(limited) or 0) if refused else state.reset_s
            headers += (
                (limit, b"%d" % state.limit),
                (remaining, b"%d" % state.remaining),
                (reset, iso(ceil(now + free_s), "seconds").encode()),
            )


def _write_ietf(states: Sequence[LimitState], limited: Limited | None, headers: Headers) -> None:
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
