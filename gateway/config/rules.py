"""The facts that checks across options look at, and rules that several of them share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, cast

from gateway.config.available import Available
from gateway.config.batches import Bucket
from gateway.config.faults import Faults, Path
from gateway.config.kinds import header_fault
from gateway.config.model import Config
from gateway.config.money import Budget
from gateway.config.sharing import Dimension, Limit


class Facts(NamedTuple):
    """The configuration, whose values are right each for itself, and what it was made of.

    auth    that option as it was written, None if it is absent
    unread  there may be keys that could not be read
    """

    config: Config
    known: Available | None
    auth: str | None = None
    unread: bool = False

    def has(self, name: str) -> bool:
        """Whether the option `name` is written."""
        return name in self.config.model_fields_set

    @property
    def any_key(self) -> bool:
        """Whether there may be callers, and teams of theirs, that this configuration does not name."""
        return self.unread or self.has("jwt") or self.has("keys_store")

    def bounds(self) -> Iterator[tuple[Path, Limit | Budget]]:
        """Limits and budgets, each with its path."""
        for index, limit in enumerate(self.config.limits):
            yield ("limits", index), limit
        for index, budget in enumerate(self.config.budgets):
            yield ("budgets", index), budget

    def matches(self) -> Iterator[tuple[Path, Mapping[Dimension, tuple[str, ...]]]]:
        """The `match` of limits, budgets, policies and rules of prompt logs, each with the path of its section."""
        for path, bound in self.bounds():
            yield path, bound.match
        for name, policy in self.config.request_policies.items():
            yield ("request_policies", name), cast("Mapping[Dimension, tuple[str, ...]]", policy.match)
        rules = {} if self.config.prompt_log is None else self.config.prompt_log.rules
        for name, rule in rules.items():
            yield ("prompt_log", "rules", name), cast("Mapping[Dimension, tuple[str, ...]]", rule.match)


def header_faults(at: Path, headers: Mapping[str, str]) -> Faults:
    """Faults of headers that are added to requests of our own."""
    lower: set[str] = set()
    for header, value in headers.items():
        wrong = header_fault(header, value) or ("is given twice" if header.lower() in lower else None)
        lower.add(header.lower())
        if wrong:
            yield (*at, header), wrong


def repeated(items: tuple[str, ...]) -> Iterator[int]:
    """The indices of items that stood before."""
    known: set[str] = set()
    for index, item in enumerate(items):
        if item in known:
            yield index
        known.add(item)


def bucket_faults(facts: Facts, at: Path, bucket: Bucket) -> Faults:
    absent = [name for name in bucket.SECRETS if getattr(bucket, f"{name}_file") is getattr(bucket, f"{name}_env")]
    if len(absent) == 1:  # without both it is the role of the environment
        yield (*at, f"{absent[0]}_file"), f"or {absent[0]}_env is needed"
    if facts.known is not None and facts.known.buckets is not None and not facts.known.buckets():
        yield at, "needs pip install 'dragoman[s3]'"
