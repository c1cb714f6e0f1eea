"""Limits on requests, tokens and concurrency: reserved before a request, settled after it, exact across replicas.

rules      the section `limits` of the configuration, and the limits of keys, as rules
addresses  the client's address, behind proxies too
kinds      the kinds of limits
spent      the counter of a budget; calendar: its periods; rebuilt: sums of records, for a Redis that has lost them
http       called by the kernel before a request; writes the headers about limits
limiter    reserves and settles; chooses the store
memory     counters in this process
redis      counters in Redis
report     the state of one caller's limits, for `dragoman limits`
"""

from gateway.ratelimit.http import HttpRateLimiter
from gateway.ratelimit.kinds import BudgetRule
from gateway.ratelimit.limiter import SubjectLimiter
from gateway.ratelimit.model import Subject
from gateway.ratelimit.plan import HEARTBEATS, KEY_KINDS
from gateway.ratelimit.rebuilt import RebuiltBudgets
from gateway.ratelimit.report import limit_names, table, too_late, unseen
from gateway.ratelimit.rules import Limits, estimator, rules
from gateway.ratelimit.store import StoreDown
