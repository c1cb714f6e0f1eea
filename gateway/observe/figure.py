"""The form of the catalogue's entries, and the bounds of histograms."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

REQUEST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
ADDED_S = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
FAST_GAP_S = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1)
GAP_S = (*FAST_GAP_S, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 10.0)
QUEUE_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
# The bounds that OpenTelemetry's semantic conventions for generative AI name.
GENAI_REQUEST_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
GENAI_FIRST_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
GENAI_GAP_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
GENAI_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)

Kind = Literal["counter", "gauge", "histogram"]
Combine = Literal["sum", "min", "max"]


class Figure(Struct, frozen=True):
    """One metric. query is a useful example in PromQL; bounds are the bounds of a histogram's buckets; across says how
    the figures of several processes behind one address are combined."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    query: str
    bounds: tuple[float, ...] = ()
    across: Combine = "sum"
    text: str = ""

    def described(self, text: str) -> Figure:
        """The same, with what it means."""
        return replace(self, text=text)

    @property
    def family(self) -> str:
        """The name as the library has it, which adds a counter's ending itself."""
        return self.name.removesuffix("_total")


def counter(name: str, labels: str = "", *, by: str = "", query: str = "") -> Figure:
    """labels are separated by spaces. The query is the growth in a second by the labels `by`, which are all of them
    unless given."""
    by = ", ".join((by or labels).split())
    return Figure(name, "counter", tuple(labels.split()), query or f"sum by ({by}) (rate({name}[5m]))")


def gauge(name: str, labels: str = "", *, query: str = "", across: Combine = "sum") -> Figure:
    """As `counter`. The query is the sum by all labels."""
    by = f" by ({', '.join(labels.split())}) " if labels else ""
    return Figure(name, "gauge", tuple(labels.split()), query or f"sum{by}({name})", across=across)


def histogram(
    name: str, bounds: tuple[float, ...], labels: str = "", *, by: str = "model", share: float = 0.95, query: str = ""
) -> Figure:
    """As `counter`. The query is a percentile by one label, the 95th by model unless given."""
    query = query or f"histogram_quantile({share:g}, sum by (le, {by}) (rate({name}_bucket[5m])))"
    return Figure(name, "histogram", tuple(labels.split()), query, bounds)


class Group(Struct, frozen=True):
    """Metrics that stand together on the page."""

    title: str
    figures: tuple[Figure, ...]
    text: str = ""


def group(title: str, *figures: Figure, text: str = "") -> Group:
    return Group(title, figures, text)
