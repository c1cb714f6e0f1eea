"""Environment variables to values: `DRAGOMAN_LISTEN__PORT=9000` is `listen.port`.

`__` goes one level down. A value that begins with `{` or `[` is JSON, but for an address such as `[::]:9090`, and
`null` is nothing; anything else is text, which the option's own kind reads. Names of models, keys and dialects match
what the file has without regard to case, with `_` for any character that a variable's name cannot hold.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from gateway.config.faults import ENVIRONMENT, Fault, Message, Path, Position, Positions, Unknown, shown
from gateway.config.kinds import IN_BRACKETS, EnvironmentText
from gateway.config.model import PREFIX, Config
from gateway.config.section import section_in

FILE_VARIABLE = PREFIX + "CONFIG"
"""Names the file to load where the caller names none."""


def _variables(section: type[BaseModel], begin: str = "") -> Iterator[str]:
    """Our variables without the prefix: all options, but those in lists and mappings."""
    for name, field in section.model_fields.items():
        yield (variable := begin + name.upper())
        if get_origin(field.annotation) not in (dict, tuple) and (inner := section_in(field.annotation)) is not None:
            yield from _variables(inner, f"{variable}__")


_ENTRIES = {name for name, field in Config.model_fields.items() if get_origin(field.annotation) is dict}
"""The sections that hold entries by name."""
_OPTIONS = ("CONFIG", *_variables(Config))
_ADDRESS = re.compile(rf"{IN_BRACKETS}:[0-9]+\Z")
_JOINED = f"; `__` joins a section and its option: {PREFIX}LISTEN__PORT"

# A Kubernetes Service called "dragoman" (or "dragoman-metrics") puts such variables into every pod of its namespace.
_SERVICE_LINK = re.compile(r"_(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)\Z")


class Settings(BaseSettings):
    """All options as they were written, not checked yet. Nothing but the given sources is read, no .env file either."""

    model_config = SettingsConfigDict(extra="allow", arbitrary_types_allowed=True)

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        sources: tuple[PydanticBaseSettingsSource, ...] = init_settings()["sources"]
        return sources

    @classmethod
    def of(cls, *sources: PydanticBaseSettingsSource) -> dict[str, Any]:
        """The options by name. The first of `sources` that sets one counts; mappings are joined, everything else (lists
        too) is replaced."""
        given: dict[str, Any] = {"sources": sources}
        return cls(**given).model_extra or {}


class FileSource(InitSettingsSource):
    """The options of the file. One without a value is none."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(Settings, {name: value for name, value in values.items() if value is not None})


class EnvironmentSource(PydanticBaseSettingsSource):
    """The values that `environ` sets, in place of pydantic-settings' own source: that one knows neither the names of
    models as the file has them nor the variable behind a fault, and passes over a misspelt one.

    base       the options of the file
    positions  the variable behind each value
    faults     what is wrong
    """

    def __init__(self, environ: Mapping[str, str], base: Mapping[str, Any]) -> None:
        super().__init__(Settings)
        self.values: dict[str, Any] = {}
        self.positions: Positions = {}
        self.faults: list[Fault] = []
        spelled: dict[int, dict[str, str]] = {}
        for variable in sorted(environ):
            own = variable.startswith(PREFIX) and variable != FILE_VARIABLE
            if own and not _is_service_link(variable, environ[variable]):
                self._take(variable, environ[variable], base, spelled)

    def __call__(self) -> dict[str, Any]:
        return self.values

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self.values.get(field_name), field_name, False

    def _take(self, variable: str, text: str, base: Mapping[str, Any], spelled: dict[int, dict[str, str]]) -> None:
        where = Position(ENVIRONMENT, variable=variable)
        segments = variable[len(PREFIX) :].split("__")
        path = _path(segments, base, spelled)
        if path[0] not in Config.model_fields:
            form = _form(segments, 0)
            self.faults.append(Fault(where, Unknown("sets no option", path[0].upper(), _OPTIONS, form, _JOINED)))
            return
        try:
            value = _decoded(text)
        except (ValueError, RecursionError):
            self.faults.append(Fault(where, "looks like JSON but is not valid JSON"))
            return
        tree = value
        for part in reversed(path):
            tree = {part: tree}
        if not _join(self.values, tree):
            self.faults.append(Fault(where, "and another variable set the same option"))
            return
        if path[0] in _ENTRIES and len(path) > 2:
            self.positions.setdefault(path[:2], where)  # that of an entry which no file has
        _record(self.positions, path, value, where)


def variable(name: str) -> str | None:
    """A variable that is not an option of the gateway; None if it is not set."""
    return os.environ.get(name)


def in_variable(position: Position, path: Path, message: Message) -> Message:
    """`message` about the value at `path`, in terms of the variable at `position`."""
    parts = (position.variable or "")[len(PREFIX) :].split("__")
    at = len(path) - 1
    if message == "is required" and at == 2 and path[0] in _ENTRIES:
        return f"is required, as no file has {shown(path[:2])}"
    if not isinstance(message, Unknown) or position.path or parts[at : at + 1] != [message.name.upper()]:
        return message
    return replace(message, name=parts[at], names=[name.upper() for name in message.names], form=_form(parts, at))


def _form(segments: list[str], at: int) -> str:
    """The variable of these segments, with "{}" for the one at index `at`."""
    segments = [part.replace("{", "{{").replace("}", "}}") for part in segments]
    return PREFIX + "__".join([*segments[:at], "{}", *segments[at + 1 :]])


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
    if text.lstrip()[:1] in ("{", "[") and not _ADDRESS.match(text):
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


def _record(positions: Positions, path: Path, value: Any, where: Position) -> None:
    positions[path] = where
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for part, child in children:
        _record(positions, (*path, part), child, where._replace(path=(*where.path, part)))
