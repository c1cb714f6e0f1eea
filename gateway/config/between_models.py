"""Faults between models: fallbacks, splits and mirrors that name no other model, or one another."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from gateway.config.faults import MOST_FAULTS, Found, Unknown
from gateway.config.kinds import header_name_fault
from gateway.config.model import Config, Model

_MOST_STEPS = 12  # of a longer way the middle is left out


def between_models(config: Config, names: set[str]) -> Found:
    """names: all that were written, also those of models with other faults."""
    fallbacks = _Fallbacks(config)
    for name, model in config.models.items():
        yield from _fallback(config, name, model, names, fallbacks)
        yield from _split(config, name, model, names)
        if model.mirror is not None:
            wrong = _other(config, name, model.mirror.model, names)
            if wrong is not None:
                yield ("models", name, "mirror", "model"), wrong
        if model.hedge_s is not None and model.discover is None and len(model.workers) == 1:
            yield ("models", name, "hedge_s"), "has no effect: there is no second worker"


def _other(config: Config, name: str, other: str, names: set[str]) -> str | Unknown | None:
    """What is wrong with `other` as the name of another model than `name`."""
    if other not in names:
        return Unknown("is no model", other, names)
    return "is the model itself" if config.resolve(other) == name else None


def _fallback(config: Config, name: str, model: Model, names: set[str], fallbacks: _Fallbacks) -> Found:
    if not model.fallback and "fallback_on" in model.model_fields_set:
        yield ("models", name, "fallback_on"), "has no effect without fallback"
    seen: set[str | None] = set()
    for index, other in enumerate(model.fallback):
        path = ("models", name, "fallback", index)
        wrong = _other(config, name, other, names)
        target = config.resolve(other)
        if wrong is not None:
            yield path, wrong
        elif target in seen and target is not None:
            yield path, "is given twice"
        elif target is not None and fallbacks.leads_back(name, target):
            yield path, "leads back to this model" + fallbacks.told(name, target)
        seen.add(target)


class _Fallbacks:
    """Which models lead to one another by their fallbacks."""

    def __init__(self, config: Config) -> None:
        self._ahead = {
            name: [target for other in model.fallback if (target := config.resolve(other)) is not None]
            for name, model in config.models.items()
        }
        self._loops = _loops(self._ahead)
        self._told = 0

    def leads_back(self, name: str, target: str) -> bool:
        """Whether `target`, a fallback of `name`, leads to `name` in its turn."""
        return self._loops[name] == self._loops[target]

    def told(self, name: str, target: str) -> str:
        """How it does, in words; "" once more were told than anybody is shown."""
        self._told += 1
        if self._told > MOST_FAULTS:
            return ""
        way = [name, *self._way(target, name)]
        if len(way) > _MOST_STEPS:
            way[_MOST_STEPS // 2 : -1] = ["..."]
        return ": " + " -> ".join(way)

    def _way(self, start: str, goal: str) -> list[str]:
        """The shortest way from `start` to `goal`, both included. There must be one."""
        came: dict[str, str | None] = {start: None}
        todo = deque([start])
        while goal not in came:
            at = todo.popleft()
            for target in self._ahead[at]:
                if target not in came:
                    came[target] = at
                    todo.append(target)
        way: list[str] = []
        step: str | None = goal
        while step is not None:
            way.append(step)
            step = came[step]
        return way[::-1]


def _loops(ahead: Mapping[str, list[str]]) -> dict[str, str]:
    """Each node of a graph -> a node that stands for its loop: nodes that lead to one another have the same.

    This is Kosaraju's algorithm, in time linear to the graph: a walk notes the nodes in the order in which it is done
    with them, and walks against the arrows, begun at the last of them first, each reach one loop.
    """
    behind: dict[str, list[str]] = {name: [] for name in ahead}
    for name, others in ahead.items():
        for other in others:
            behind[other].append(name)
    loops: dict[str, str] = {}
    for start in reversed(_done(ahead)):
        todo = [] if start in loops else [start]
        while todo:
            name = todo.pop()
            loops[name] = start
            todo += [other for other in behind[name] if other not in loops]
    return loops


def _done(ahead: Mapping[str, list[str]]) -> list[str]:
    """The nodes in the order in which a walk in depth is done with them."""
    done: list[str] = []
    seen: set[str] = set()
    for start in ahead:
        todo = [] if start in seen else [(start, iter(ahead[start]))]
        seen.add(start)
        while todo:
            name, others = todo[-1]
            further = next((other for other in others if other not in seen), None)
            if further is None:
                done.append(name)
                todo.pop()
            else:
                seen.add(further)
                todo.append((further, iter(ahead[further])))
    return done


def _split(config: Config, name: str, model: Model, names: set[str]) -> Found:
    if not model.split and "split_by" in model.model_fields_set:
        yield ("models", name, "split_by"), "has no effect without split"
    total = 0.0
    for index, rule in enumerate(model.split):
        path = ("models", name, "split", index)
        wrong = _other(config, name, rule.model, names)
        if wrong is not None:
            yield (*path, "model"), wrong
        for at, key in enumerate(rule.keys or ()):
            # Tokens of an identity provider may bring any.
            if key not in config.keys and config.jwt is None:
                yield (*path, "keys", at), Unknown("is no key", key, config.keys)
        for header in rule.headers:
            if fault := header_name_fault(header):
                yield (*path, "headers", header), fault
        if rule.keys is None and not rule.headers:
            total += rule.share
            if total > 1 + 1e-9:
                yield (*path, "share"), "makes the shares more than 1"
