"""Pick policies: which of the open workers takes the next request (docs/routing.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.fleet.pick.plain import LeastBusy, LeastTokens, PowerOfTwo, RoundRobin
from gateway.fleet.pick.policy import PickPolicy
from gateway.fleet.pick.prefix import Prefix

POLICIES: Mapping[str, Callable[[], PickPolicy]] = {
    policy.name: policy for policy in (Prefix, LeastTokens, PowerOfTwo, LeastBusy, RoundRobin)
}
"""Name in the configuration -> makes the policy of one model. A policy may remember what it sent where."""
