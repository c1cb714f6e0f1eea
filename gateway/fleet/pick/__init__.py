"""Pick policies: which of the open workers takes the next request. docs/routing.md says which policy suits which load.

Each policy is one file here, and a line in `POLICIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.fleet.pick.least_busy import LeastBusy
from gateway.fleet.pick.least_tokens import LeastTokens
from gateway.fleet.pick.policy import PickPolicy
from gateway.fleet.pick.power_of_two import PowerOfTwo
from gateway.fleet.pick.prefix import Prefix
from gateway.fleet.pick.round_robin import RoundRobin

__all__ = ["POLICIES", "LeastBusy", "LeastTokens", "PickPolicy", "PowerOfTwo", "Prefix", "RoundRobin"]

POLICIES: Mapping[str, Callable[[], PickPolicy]] = {
    "prefix": Prefix,
    "least_tokens": LeastTokens,
    "power_of_two": PowerOfTwo,
    "least_busy": LeastBusy,
    "round_robin": RoundRobin,
}
"""Name in the configuration -> makes the policy of one model. A policy may remember what it sent where."""
