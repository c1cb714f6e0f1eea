"""The limits of the configuration, applied to requests. `gateway.limits` counts; this package says what is counted, and
tells clients about it.

rules      the section `limits` of the configuration, and the limits of keys, as rules
addresses  the client's address, behind proxies too
gate       called by the pipeline before a request and after it
standing   the state of one caller's limits, for `dragoman limits`
"""

from gateway.limiting.gate import Limiting
from gateway.limiting.rules import Limits, estimator, rules
from gateway.limiting.standing import table, unseen

__all__ = ["Limiting", "Limits", "estimator", "rules", "table", "unseen"]
