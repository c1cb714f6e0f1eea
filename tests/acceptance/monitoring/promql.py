"""What a PromQL expression asks for: its metrics, and the labels by which it selects and groups."""

from __future__ import annotations

import re
from itertools import pairwise

from msgspec import Struct, field

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\[[^\]]*\]|\d[\w.]*|[A-Za-z_:][\w:]*|[=!]~|[=!<>]=|\S')
_WORD = re.compile(r"[A-Za-z_:]")
_GROUPING = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_FUNCTIONS = {
    "rate",
    "increase",
    "sum",
    "avg",
    "min",
    "max",
    "count",
    "group",
    "topk",
    "absent",
    "deriv",
    "resets",
    "vector",
}
_FUNCTIONS |= {"histogram_quantile", "last_over_time", "min_over_time", "count_over_time", "max_over_time", "round"}
_OPERATORS = {"and", "or", "unless", "bool", "offset"}


class Asked(Struct):
    """metrics: name -> labels that selectors of it name; grouped: labels in `by (…)` and its like; selectors: each as
    written, with its braces; counted: metrics below a function for counters."""

    metrics: dict[str, set[str]] = field(default_factory=dict)
    grouped: set[str] = field(default_factory=set)
    selectors: list[str] = field(default_factory=list)
    counted: set[str] = field(default_factory=set)


def asked(expression: str) -> Asked:
    """Every word that is neither a function nor an operator is a metric's name."""
    found = Asked()
    tokens = _TOKEN.findall(expression)
    at = 0
    while at < len(tokens):
        token, after = tokens[at], tokens[at + 1] if at + 1 < len(tokens) else ""
        at += 1
        if not _WORD.match(token) or token in _FUNCTIONS | _OPERATORS:
            continue
        if token in _GROUPING:
            end = tokens.index(")", at)
            found.grouped |= {one for one in tokens[at:end] if _WORD.match(one)}
            at = end + 1
            continue
        labels = found.metrics.setdefault(token, set())
        if tokens[at - 3 : at - 1] in (["rate", "("], ["increase", "("]):
            found.counted.add(token)
        if after == "{":
            end = tokens.index("}", at)
            found.selectors.append("".join(tokens[at : end + 1]))
            labels |= {one for one, next_ in pairwise(tokens[at:end]) if next_ in ("=", "!=", "=~", "!~")}
            at = end + 1
        else:
            found.selectors.append("")
    return found
