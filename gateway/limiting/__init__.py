"""Limits as configured, put before requests: `gateway.limits` counts, this says what is counted and tells the client.

rules      the section `limits` of the configuration, and the limits of keys, as rules
addresses  which address a request comes from, behind proxies too
gate       what the pipeline asks before a request and tells after it
standing   how the limits of somebody stand, for `dragoman limits`
"""

from gateway.limiting.gate import Limiting
from gateway.limiting.rules import estimator, rules
from gateway.limiting.standing import table, unseen

__all__ = ["Limiting", "estimator", "rules", "table", "unseen"]
