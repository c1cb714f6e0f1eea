"""Limits on requests, tokens and concurrency: reserved before a request, settled after it, exact across replicas.

rules      the section `limits` of the configuration, and the limits of keys, as rules
addresses  the client's address, behind proxies too
gate       called by the pipeline before a request and after it; writes the headers
limiter    reserves and settles; chooses the store
memory     counters in this process
redis      counters in Redis
report     the state of one caller's limits, for `dragoman limits`
"""

from gateway.ratelimit.gate import Limiting
from gateway.ratelimit.limiter import Limiter
from gateway.ratelimit.memory import MemoryStore
from gateway.ratelimit.model import Decision, Lease, Limited, Outcome, Rule, RuleState, Subject
from gateway.ratelimit.report import table, unseen
from gateway.ratelimit.rules import Limits, estimator, rules
from gateway.ratelimit.store import Store, StoreDown

__all__ = [
    "Decision",
    "Lease",
    "Limited",
    "Limiter",
    "Limiting",
    "Limits",
    "MemoryStore",
    "Outcome",
    "Rule",
    "RuleState",
    "Store",
    "StoreDown",
    "Subject",
    "estimator",
    "rules",
    "table",
    "unseen",
]
