"""Limits on requests, tokens and concurrency: reserved before a request, settled after it, exact across replicas.

`Limiter` is what the rest of the gateway sees. It imports the core only; redis is imported by `store_redis` alone.
"""

from gateway.limits.engine import Limiter
from gateway.limits.estimate import Estimator
from gateway.limits.model import Cost, Decision, Lease, Limited, Outcome, Rule, RuleState, Subject
from gateway.limits.store import Store, StoreDown
from gateway.limits.store_memory import MemoryStore

__all__ = [
    "Cost",
    "Decision",
    "Estimator",
    "Lease",
    "Limited",
    "Limiter",
    "MemoryStore",
    "Outcome",
    "Rule",
    "RuleState",
    "Store",
    "StoreDown",
    "Subject",
]
