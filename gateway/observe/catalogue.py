"""Every metric that `/metrics` shows, as catalogue.yaml describes it. docs/metrics.md is made from it.

Collectors take their families from here, so that no metric is shown that is not described.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

Combine = Literal["sum", "min", "max"]


class Figure(Struct, frozen=True, forbid_unknown_fields=True):
    """One metric.

    name    that of the exposition: a counter's ends in `_total`
    query   a useful example in PromQL
    bounds  the upper bounds of a histogram's buckets
    across  how the figures of several processes behind one address are combined
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    query: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    across: Combine = "sum"

    @property
    def family(self) -> str:
        """The name as the library has it, which adds a counter's ending itself."""
        return self.name.removesuffix("_total")


class Group(Struct, frozen=True, forbid_unknown_fields=True):
    """Metrics that stand together on the page."""

    title: str
    figures: tuple[Figure, ...]
    text: str = ""


GROUPS = msgspec.yaml.decode(Path(__file__).with_name("catalogue.yaml").read_bytes(), type=tuple[Group, ...])
FIGURES = {figure.name: figure for group in GROUPS for figure in group.figures}
