"""A property of the chart: what holds in a render, and the place in the templates that makes it so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from tests.acceptance.helm.chart import Object, container, find

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


def at(value: Any, path: str = "") -> Any:
    """What a dotted path leads to; numbers are positions in lists. Raises LookupError."""
    for name in filter(None, path.split(".")):
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


def volume(among: Sequence[Object], name: str, kind: str = "Deployment") -> Object:
    """The volume with the weights of a model's Pods, without its name."""
    volumes = at(find(among, kind, name), "spec.template.spec.volumes")
    found: Object = next((volume for volume in volumes if volume["name"] == "cache"), {})
    return {key: value for key, value in found.items() if key != "name"}


def policy(among: Sequence[Object], name: str) -> Object:
    spec: Object = find(among, "NetworkPolicy", name)["spec"]
    return spec


def reached_from(policy: Object, port: Any) -> list[Any]:
    """The peers that reach a port; [None] for everybody."""
    rules = [rule for rule in policy["ingress"] if {"port": port} in rule.get("ports", [{"port": port}])]
    return [peer for rule in rules for peer in rule.get("from", [None])]


def components(peers: Sequence[Any]) -> list[str]:
    return [peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for peer in peers]


def open_to(policy: Object, port: int | str) -> list[Any]:
    """The peers to which a port is open; [None] for everybody."""
    rules = [rule for rule in policy["egress"] if port in [one["port"] for one in rule.get("ports", [])]]
    return [peer for rule in rules for peer in rule.get("to", [None])]


def look(among: Sequence[Object], place: str) -> Any:
    """The value at a place of properties.yaml. Its words, with a dotted path for PATH:

    gateway.yaml PATH, KIND/NAME PATH (* for the only one of its kind), container KIND/NAME PATH, env KIND/NAME NAME,
    flags KIND/NAME FLAG, volume NAME [PATH], from NAME PORT, to NAME PORT (the peers that a policy lets in or out),
    components from NAME PORT (the components that these peers are). Raises LookupError.
    """
    match place.split():
        case ["gateway.yaml", *path]:
            return at(gateway_yaml(among), *path)
        case ["container", where, path]:
            return at(container(among, *where.split("/")), path)
        case ["env", where, name]:
            return environment(container(among, *where.split("/")))[name]
        case ["flags", where, name]:
            return flags(among, *where.split("/"))[name]
        case ["volume", name, *path]:
            return at(volume(among, name), *path)
        case ["from" | "to" as way, name, port]:
            number = int(port) if port.isdigit() else port
            return (reached_from if way == "from" else open_to)(policy(among, name), number)
        case ["components", *peers]:
            return components(look(among, " ".join(peers)))
        case [where, *path]:
            kind, name = where.split("/")
            return at(find(among, kind, None if name == "*" else name), *path)
    raise LookupError(place)


def _as_declared(declared: dict[str, Any], among: Sequence[Object]) -> bool:
    return (
        all(look(among, place) == value for place, value in declared.get("is", {}).items())
        and all(value in look(among, place) for place, value in declared.get("has", {}).items())
        and all(value not in look(among, place) for place, value in declared.get("lacks", {}).items())
    )


def declared() -> Iterator[Property]:
    """The properties of properties.yaml."""
    for one in yaml.safe_load(Path(__file__).with_name("properties.yaml").read_text()):
        holds: Callable[[Sequence[Object]], bool] = partial(_as_declared, one)
        if "holds" in one:
            room, function = one["holds"].split(".")
            holds = getattr(import_module(f"tests.acceptance.helm.properties_{room}"), function)
        yield Property(one["name"], one["values"], holds, tuple(map(tuple, one["made_by"])))
