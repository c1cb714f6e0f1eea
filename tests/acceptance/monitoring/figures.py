"""Every metric that a dashboard or an alert may ask for, with its labels."""

from __future__ import annotations

import asyncio
import re

from gateway.observe.catalogue import FIGURES
from workers.simulated.engine import Engine
from workers.simulated.metrics import Metrics
from workers.simulated.options import Options

_SAMPLE = re.compile(r"^(?P<name>vllm:\w+)\{(?P<labels>.*)\} \S+$", re.MULTILINE)
OF_TARGETS = {"namespace", "job", "instance", "pod"}
"""Labels that Prometheus itself adds."""


def _gateway() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for figure in FIGURES.values():
        labels = set(figure.labels)
        if figure.kind == "histogram":
            found |= {f"{figure.name}_{part}": labels for part in ("count", "sum")}
            found[f"{figure.name}_bucket"] = labels | {"le"}
        else:
            found[figure.name] = labels
    return found


def _vllm() -> dict[str, set[str]]:
    loop = asyncio.new_event_loop()
    engine = Engine(Options(), loop)
    loop.close()
    page = Metrics().render(engine)
    return {sample["name"]: set(re.findall(r'(\w+)="', sample["labels"])) for sample in _SAMPLE.finditer(page)}


KNOWN: dict[str, set[str]] = {**_gateway(), **_vllm(), "up": set()}
