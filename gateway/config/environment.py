"""Environment variables to values: `DRAGOMAN_LISTEN__PORT=9000` is `listen.port`.

`__` goes one level down. A value that begins with `{` or `[` is JSON, and `null` is nothing; anything else is text,
which the option's own kind reads. Names of models, keys and dialects match what the file has without regard to case,
with `_` for any character that a variable's name cannot hold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from gateway.config.faults import ENVIRONMENT, Fault, Path, Position, Positions, Unknown
from gateway.config.kinds import EnvironmentText
from gateway.config.model import PREFIX, Config

FILE_VARIABLE = PREFIX + "CONFIG"
"""Names the file to load where the caller names none."""

_OPTIONS = tuple(name.upper() for name in Config.model_fields)

# A Kubernetes Service called "dragoman" (or "dragoman-metrics") puts such variables into every pod of its namespace.
_SERVICE_LINK = re.compile(r"_(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)\Z")


def read_environment(
    environ: Mapping[str, str], base: Mapping[str, Any]
) -> tuple[dict[str, Any], Positions, list[Fault]]:
    """The values that `environ` sets, the variable behind each, and what is wrong. base is what the file holds."""
    values: dict[str, Any] = {}
    positions: Positions = {}
    faults: list[Fault] = []
    spelled: dict[int, dict[str, str]] = {}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable == FILE_VARIABLE:
            continue
        if _is_service_link(variable, environ[variable]):
            continue
        where = Position(ENVIRONMENT, variable=variable)
        segments = variable[len(PREFIX) :].split("__")
        path = _path(segments, base, spelled)
        if path[0] not in Config.model_fields:
            form = "__".join([PREFIX + "{}", *(part.replace("{", "{{").replace("}", "}}") for part in segments[1:])])
            faults.append(Fault(where, Unknown("sets no option", path[0].upper(), _OPTIONS, form)))
            continue
        try:
            value = _decoded(environ[variable])
        except (ValueError, RecursionError):
            faults.append(Fault(where, "looks like JSON but is not valid JSON"))
            continue
        tree = value
        for part in reversed(path):
            tree = {part: tree}
        if not _join(values, tree):
            faults.append(Fault(where, "and another variable set the same option"))
            continue
        _place(positions, path, value, where)
    return values, positions, faults


def _is_service_link(variable: str, value: str) -> bool:
    if not _SERVICE_LINK.search(variable) or "__" in variable:
        return False
    return "_SERVICE_" in variable or not variable.endswith("_PORT") or "://" in value


def _path(segments: list[str], base: Any, spelled: dict[int, dict[str, str]]) -> tuple[str, ...]:
    """The path that a variable's segments stand for. spelled keeps, by the id of a mapping, how its names look
    there."""
    path: list[str] = []
    for segment in segments:
        name = segment.lower()
        if isinstance(base, dict):
            if id(base) not in spelled:
                # The first of names that look alike is meant.
                spelled[id(base)] = {re.sub(r"[^A-Z0-9]", "_", one.upper()): one for one in reversed(base)}
            name = spelled[id(base)].get(segment.upper(), name)
            base = base.get(name)
        path.append(name)
    return tuple(path)


def _decoded(text: str) -> Any:
    if text == "null":
        return None
    if text.lstrip()[:1] in ("{", "["):
        return json.loads(text, object_pairs_hook=_once)
    return EnvironmentText(text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    "".join(values).encode()  # half a surrogate pair is not a name
    if len(values) < len(pairs):
        raise ValueError("a name is given twice")
    return values


def _join(values: dict[str, Any], more: dict[str, Any]) -> bool:
    """Adds `more` to `values`; False if both set the same option, or one a part of what the other sets."""
    for name, value in more.items():
        known = values.setdefault(name, value)
        if known is not value and not (isinstance(known, dict) and isinstance(value, dict) and _join(known, value)):
            return False
    return True


def _place(positions: Positions, path: Path, value: Any, where: Position) -> None:
    positions[path] = where
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for part, child in children:
        _place(positions, (*path, part), child, where._replace(path=(*where.path, part)))


def merged(under: Any, over: Any) -> Any:
    """`over` on top of `under`: mappings are joined, everything else (lists too) is replaced."""
    if not (isinstance(under, dict) and isinstance(over, dict)):
        return over
    joined = dict(under)
    for name, value in over.items():
        joined[name] = merged(under[name], value) if name in under else value
    return joined
