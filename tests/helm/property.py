"""A property of the chart: what holds in a render, and the place in the templates that makes it so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import yaml

from tests.helm.chart import Object, container, find

Off = tuple[str, str, str]
"""(file below templates/, text that is there exactly once, what stands there when the property is switched off)"""


@dataclass(frozen=True)
class Property:
    """holds looks at the render of the value set `values`. Each of `off` alone must make it false."""

    name: str
    values: str
    holds: Callable[[Sequence[Object]], bool]
    off: tuple[Off, ...]

    def held(self, among: Sequence[Object]) -> bool:
        """Whether it holds; an object or a field that is not there says no."""
        try:
            return self.holds(among)
        except (LookupError, TypeError, AttributeError):
            return False


def at(value: Any, path: str) -> Any:
    """What a dotted path leads to; numbers are positions in lists. Raises LookupError."""
    for name in path.split("."):
        value = value[int(name)] if isinstance(value, list) else value[name]
    return value


def gateway_yaml(among: Sequence[Object]) -> dict[str, Any]:
    """The gateway's configuration, parsed."""
    loaded: dict[str, Any] = yaml.safe_load(find(among, "ConfigMap", "dragoman")["data"]["gateway.yaml"])
    return loaded


def deployment(among: Sequence[Object], name: str = "dragoman") -> Object:
    """The spec of a Deployment."""
    spec: Object = find(among, "Deployment", name)["spec"]
    return spec


def gateway(among: Sequence[Object]) -> Object:
    """The gateway's container."""
    return container(among, "Deployment", "dragoman")


def flags(among: Sequence[Object], kind: str, name: str) -> dict[str, str]:
    """The flags of a worker with their values; "" for one without."""
    words = [*container(among, kind, name)["args"], "--"]
    pairs = pairwise(words)
    return {word: "" if after.startswith("--") else after for word, after in pairs if word.startswith("--")}


def environment(one: Object) -> dict[str, Any]:
    """The variables of a container: the value, or where it is from."""
    return {variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in one.get("env", [])}
