"""Faults between options of the log of prompts, and of its patterns."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from gateway.config.faults import Faults
from gateway.config.prompt_log import PromptLog
from gateway.config.rules import Facts, bucket_faults

MOST_WIDTH = 256
"""Characters that a pattern may match: as many are looked at again behind each window of a text."""
_LINE = 16
"""A line has a prompt and a reply, as JSON: six bytes for a control character."""
_MOST_WAYS = 10_000
"""Ways in which a pattern may match one text: a search goes through them all at each place in the worst case."""
# The module has no public name. `re` itself compiles by it.
_parse: Any = import_module("re._parser").parse


def prompt_log(facts: Facts) -> Faults:
    options = facts.config.prompt_log
    if options is None:
        for name, key in facts.config.keys.items():
            if key.log_prompts_until is not None:
                yield ("keys", name, "log_prompts_until"), "has no effect without a section prompt_log"
        return
    stored = options.directory is not None or options.bucket is not None
    yield from _destinations(facts, options, stored)
    if 4 * options.max_entry_bytes > options.max_waiting_bytes:
        yield ("prompt_log", "max_waiting_bytes"), "must be at least four times max_entry_bytes"
    if stored and _LINE * options.max_entry_bytes > options.max_bytes:
        yield ("prompt_log", "max_bytes"), f"must be at least {_LINE} times max_entry_bytes"
    for name, pattern in options.patterns.items():
        if wrong := pattern_fault(pattern):
            yield ("prompt_log", "patterns", name), wrong


def _destinations(facts: Facts, options: PromptLog, stored: bool) -> Faults:
    at = ("prompt_log",)
    if not stored and not options.traces:
        yield at, "must say where: directory, bucket or traces"
    if not stored:
        for name in ("keep_s", "max_bytes"):
            if name in options.model_fields_set:
                yield (*at, name), "has no effect without directory or bucket"
    if options.bucket is not None:
        yield from bucket_faults(facts, (*at, "bucket"), options.bucket)
    if options.traces and facts.config.tracing is None:
        yield (*at, "traces"), "needs a section tracing"


def pattern_fault(pattern: str) -> str | None:
    """The fault of a pattern for texts of strangers, or None. Python's `re` tries one way to match after the other: so
    their number is bounded, as is what they match."""
    try:
        tree = _parse(pattern)
        re.compile(pattern)
        ways = _ways(tree)
    except re.error as error:
        return f"is not a regular expression: {error.msg}"
    except (OverflowError, RecursionError):
        return "is not a regular expression: it is too large"
    except ValueError as error:
        return str(error)
    least, most = tree.getwidth()
    if not least:
        return "matches the empty text"
    if most > MOST_WIDTH:
        return f"may match at most {MOST_WIDTH} characters: write {{1,64}} in place of + and {{0,64}} in place of *"
    return "can match in too many ways: make repeats shorter, or less alike" if ways > _MOST_WAYS else None


def _ways(items: Iterable[tuple[Any, Any]]) -> int:
    """In how many ways a sequence can match, `_MOST_WAYS` + 1 for more. Raises ValueError saying what is wrong."""
    product = 1
    for op, given in items:
        product = min(product * _ways_of(str(op), given), _MOST_WAYS + 1)
    return product


def _ways_of(op: str, given: Any) -> int:
    match op:
        case "LITERAL" | "NOT_LITERAL" | "IN" | "ANY":
            return 1
        case "AT" if str(given) in ("AT_BOUNDARY", "AT_NON_BOUNDARY"):
            return 1
        case "SUBPATTERN":
            return _ways(given[-1])
        case "ATOMIC_GROUP":
            return _ways(given)
        case "BRANCH":
            return sum(_ways(one) for one in given[1])
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            least, most, inner = min(int(given[0]), MOST_WIDTH + 1), min(int(given[1]), MOST_WIDTH), given[2]
            each = _ways(inner)
            found, power = 0, each**least
            for _ in range(least, most + 1):
                found += power
                power *= each
                if found > _MOST_WAYS:
                    return _MOST_WAYS + 1
            return found
        case _:
            raise ValueError("must not look around, refer to a group, or ask for the begin or end of the text")
