"""`load` reads the file and the environment into a `Config`, or raises an error with all faults at once."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from pathlib import Path as FilePath
from typing import Any, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.config.available import Available
from gateway.config.checks import check
from gateway.config.environment import FILE_VARIABLE, EnvironmentSource, FileSource, Settings, in_variable
from gateway.config.faults import (
    ConfigError,
    Fault,
    Faults,
    Message,
    Path,
    Position,
    Positions,
    Unknown,
    config_error,
    locate,
    masked,
    shown,
)
from gateway.config.former import rename
from gateway.config.model import Config, Key
from gateway.config.rules import Facts
from gateway.config.secrets import read_secrets, with_secrets
from gateway.config.section import section_in
from gateway.config.sharing import Team
from gateway.config.source import MOST_BYTES, MOST_ENTRIES_BYTES, NOT_READ, Unreadable, read_yaml

# pydantic's error type, or its begin -> our words, with values of the error's context. They never hold the value.
_WORDS = {
    "missing": "is required",
    "int": "must be a whole number",
    "float": "must be a number",
    "finite_number": "must be a finite number",
    "bool": "must be true or false",
    "string_type": "must be text; put it in quotes",
    "string_too_short": "must not be empty",
    "model": "must be a section of options",
    "dict": "must be a mapping of names",
    "tuple": "must be a list",
    "frozen": "must be a list",
    "value_error": "{error}",
    "greater_than": "must be greater than {gt:.12g}",
    "greater_than_equal": "must be at least {ge:.12g}",
    "less_than": "must be less than {lt:.12g}",
    "less_than_equal": "must be at most {le:.12g}",
    "too_long": "must have at most {max_length} items",
    "string_too_long": "must have at most {max_length} characters",
}

_FEW = 8
"""At most as many options are listed where none has a similar name."""

FORMS = {
    r"^/": "must be an absolute path, such as /var/lib/dragoman",
    r"^[A-Z]{3}$": "must be three capital letters, such as EUR",
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}(-preview)?$": "must be a date such as 2024-10-21, or one with -preview behind it",
    r"^[0-9a-z]{4,32}$": "must be 4 to 32 digits and small letters",
    r"^[A-Za-z0-9_-]{4,128}$": "must be 4 to 128 letters, digits, _ and -",
    r"^[A-Za-z0-9-]{1,64}$": "must be 1 to 64 letters, digits and -",
    r"^[A-Za-z0-9_.-]{1,64}$": "must be 1 to 64 letters, digits, _, . and -",
    r"^[A-Za-z0-9_.-]{1,128}$": "must be 1 to 128 letters, digits, _, . and -",
    r"^[A-Za-z0-9_.:{}-]{1,128}$": "must be 1 to 128 letters, digits, _, ., :, braces and -",
    r"^[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9_-]{1,64}){0,8}$": "must be names of members with dots between them",
    r"^([A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*)?$": "must be names with slashes between them, "
    "such as prompts/eu",
    r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$": "must be a bucket's name: 3 to 63 small letters, digits, . and -, with a "
    "letter or a digit at both ends",
}
"""A pattern that a text must match -> what that asks of a person."""


def config_file(environ: Mapping[str, str] | None = None) -> str | None:
    """The file to read if the caller names none: that of DRAGOMAN_CONFIG, else ./gateway.yaml if it is there, or
    None."""
    environ = os.environ if environ is None else environ
    return environ.get(FILE_VARIABLE) or ("gateway.yaml" if os.path.isfile("gateway.yaml") else None)


def load(
    path: str | os.PathLike[str] | None,
    known: Available | None = None,
    environ: Mapping[str, str] | None = None,
    only: Container[str] | None = None,
) -> Config:
    """The configuration in the file at `path`, with the environment on top.

    path     None is the file that DRAGOMAN_CONFIG names, or the environment alone
    known    the dialects and backends there are; without it their names are not checked
    environ  os.environ unless given
    only     the sections whose secrets and certificates are read, and `keys_file` and `admins_file`; all unless given.
             A command needs no file or variable of which it makes no use

    Also reads the secrets that the configuration refers to. Raises `ConfigError` with all faults: those of values alone
    while a value is wrong, and then those between options and of the files that they name.
    """
    environ = os.environ if environ is None else environ
    path = path if path is not None else environ.get(FILE_VARIABLE) or None
    with suppress(ConfigError):
        return _read(Written(path, environ, only, placed=False), known, environ, only)
    return _read(Written(path, environ, only), known, environ, only)  # positions are recorded only for faults


def _read(written: Written, known: Available | None, environ: Mapping[str, str], only: Container[str] | None) -> Config:
    """Raises ConfigError, which says what is wrong if values have positions."""
    try:
        return _checked(written, known, environ, only)
    finally:
        written.forget()


def _checked(
    written: Written, known: Available | None, environ: Mapping[str, str], only: Container[str] | None
) -> Config:
    config = _validated(written.values)
    if not isinstance(config, Config):
        raise written.error(config, partial=True)
    secrets, unread = read_secrets(config, environ, known, only)
    faults = [*check(Facts(config, known, written.auth, written.unread)), *unread]
    if faults or written.faults:
        raise written.error(faults)
    config = with_secrets(config, secrets)
    config._former = tuple(written.former)
    return config


def key_of(
    config: Config, known: Available | None, name: str, options: Mapping[str, Any], unchanged: Container[object] = ()
) -> Key:
    """The key `name` with `options`, checked as an entry of the file is, beside the rest of `config`. unchanged: those
    that are in force already, though a reload may have taken away what they name. Raises ValueError with every fault,
    as `option: what is wrong`."""
    found: Key = _entry_of(config, known, "keys", name, options, unchanged)
    return found


def team_of(
    config: Config, known: Available | None, name: str, options: Mapping[str, Any], unchanged: Container[object] = ()
) -> Team:
    """As `key_of`, a team."""
    found: Team = _entry_of(config, known, "teams", name, options, unchanged)
    return found


def _entry_of(
    config: Config,
    known: Available | None,
    section: str,
    name: str,
    options: Mapping[str, Any],
    unchanged: Container[object],
) -> Any:
    valid = _validated({section: {name: options}})
    if isinstance(valid, Config):
        entries = getattr(valid, section)
        facts = Facts(config.model_copy(update={"keys": {}, "teams": {}, section: entries}), known)
        own = ((path, message) for path, message in check(facts) if path[:2] == (section, name))
        faults = [(path, message) for path, message in own if not (len(path) > 2 and path[2] in unchanged)]
        if not faults:
            return entries[name]
    else:
        faults = valid
    raise ValueError("; ".join(masked(f"{shown(path[2:]) or 'name'}: {what}") for path, what in faults))


def faults_of(values: Mapping[str, Any], known: Available | None) -> list[tuple[Path, Message]]:
    """The faults of a configuration with these values, as far as its own text shows them: nothing else is read. Those
    of values alone while a value is wrong."""
    valid = _validated(values)
    return list(check(Facts(valid, known, values.get("auth")))) if isinstance(valid, Config) else valid


class Written:
    """All values before validation, from every source, and the position of each.

    unread  the keys file could not be read, or was not asked for: there may be keys in it
    placed  whether values have positions
    auth    the option as it was written, None if it is absent
    former  a warning for each former name in them

    Raises ConfigError if the configuration file cannot be read: to judge the rest would raise false alarms only.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        environ: Mapping[str, str],
        only: Container[str] | None = None,
        placed: bool = True,
    ) -> None:
        self.placed = placed
        self.positions: Positions = {}
        self.faults: list[Fault] = []
        self.files: list[str] = []
        self.values: dict[str, Any] = {}
        self.unread = False
        self._folder = FilePath(path).parent if path is not None else FilePath()
        if path is not None:
            try:
                self.values = self._read(FilePath(path), os.fspath(path), ())
            except Unreadable as stop:
                position, message = stop.fault
                if str(stop).startswith(NOT_READ) and os.fspath(path) == environ.get(FILE_VARIABLE):
                    message = f"{message}; {FILE_VARIABLE} names it"
                raise config_error([*self.faults, Fault(position, message)], self.files) from None
        environment = EnvironmentSource(environ, self.values)
        self._overlay(environment.values, environment.positions)
        self.values = Settings.of(environment, FileSource(self.values))
        self.auth = self.values.get("auth")
        self.faults += environment.faults
        for section in ("keys", "admins"):
            if only is None or f"{section}_file" in only:
                self._add_entries(section)
            elif f"{section}_file" in self.values:
                self.unread = True
        self._resolve_paths()
        faults, self.former = rename(self.values, self.positions)
        self.faults += [Fault(locate(self.positions, at), message) for at, message in faults]

    def error(self, faults: Iterable[tuple[Path, Message]], partial: bool = False) -> ConfigError:
        """The error for `faults` and those of reading. Without positions it says nothing."""
        if not self.placed:
            return ConfigError(())
        found = list(self.faults)
        for at, message in faults:
            position = locate(self.positions, at)
            found.append(Fault(position, message if position.variable is None else in_variable(position, at, message)))
        return config_error(found, self.files, partial)

    def forget(self) -> None:
        """Frees what was written of entries, one after the other: 100,000 that go at once hold up all threads."""
        for entries in (self.values.get("keys"), self.positions):
            while isinstance(entries, dict) and entries:
                entries.popitem()

    def _read(self, path: FilePath, name: str, at: Path, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
        """Raises Unreadable."""
        self.files.append(name)
        values, positions, faults = read_yaml(path, name, at, most_bytes, self.placed)
        self.faults += faults
        if values is not None and not isinstance(values, dict):
            raise Unreadable(Position(name, 1), "must be a mapping of options")
        self.positions = {**positions, **self.positions}
        return values or {}

    def _overlay(self, values: dict[str, Any], positions: Positions) -> None:
        """Puts the positions of the environment's `values` on top of the file's."""
        leaves = {path for path in positions if not isinstance(_at(values, path), dict)}
        remaining = {
            path: position
            for path, position in self.positions.items()
            if not any(path[:length] in leaves for length in range(1, len(path) + 1))
        }
        self.positions = {**positions, **remaining} if leaves else {**positions, **self.positions}

    def _add_entries(self, section: str) -> None:
        """Adds the entries of the section's own file."""
        option = f"{section}_file"
        name = self.values.get(option)
        if not isinstance(name, str) or not name:
            return
        path = self._folder / name
        try:
            more = self._read(path, os.fspath(path), (section,), MOST_ENTRIES_BYTES)
        except Unreadable as stop:
            self.unread = self.unread or section == "keys"
            unopened = str(stop).startswith(NOT_READ)
            position = locate(self.positions, (option,))
            self.faults.append(Fault(position, f"names a file that {stop}") if unopened else stop.fault)
            return
        entries = self.values.get(section) or {}
        if isinstance(entries, dict):
            for entry in entries.keys() & more.keys():
                self.faults.append(Fault(locate(self.positions, (section, entry)), f"is also in {option}"))
            self.values[section] = {**more, **entries}

    def _resolve_paths(self) -> None:
        """Makes names of files relative to the configuration's folder."""
        sections = [self.values, *self.values.values()]
        for name in ("models", "keys", "batches", "prompt_log", "console"):
            if isinstance(entries := self.values.get(name), dict):
                sections += entries.values()
        for options in sections:
            for name, value in options.items() if isinstance(options, dict) else ():
                if str(name).endswith("_file") and isinstance(value, str) and value:
                    options[name] = os.fspath(self._folder / value)


def _at(values: Any, path: Path) -> Any:
    for part in path:
        values = values[part]
    return values


def _validated(values: Mapping[str, Any]) -> Config | list[tuple[Path, Message]]:
    """The configuration, or the faults of its values, to be raised where no other error is under way."""
    try:
        return Config(**values)
    except ValidationError as error:
        return list(_faults(error))


def _faults(error: ValidationError) -> Faults:
    """The faults of values, by path."""
    for one in _details(error):
        path = one["loc"][:-1] if one["loc"][-1] == "[key]" else one["loc"]
        yield path, _message(one, path)


def _details(error: ValidationError) -> list[ErrorDetails]:
    """pydantic's errors, without "too few items" for a list whose items have errors of their own."""
    details = error.errors(include_url=False, include_input=False)
    holders = {one["loc"][:-1] for one in details}
    return [one for one in details if one["type"] != "too_short" or one["loc"] not in holders]


def _message(detail: ErrorDetails, path: Path) -> Message:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        options = _options_of(path[:-1])
        verb = "is" if len(options) == 1 else "are"
        few = f"; there {verb} {', '.join(options)}" if 0 < len(options) <= _FEW else ""
        return Unknown("is not an option", str(path[-1]), options, otherwise=few)
    if kind == "string_pattern_mismatch":
        return FORMS[context["pattern"]]
    if kind == "literal_error":
        return f"must be one of {str(context['expected']).replace(' or ', ', ').replace(chr(39), '')}"
    if kind == "too_short":
        return f"must have at least {context['min_length']} item{'s' * (context['min_length'] != 1)}"
    words = _WORDS.get(kind) or _WORDS.get(kind.partition("_")[0], "is not a valid value")
    return words.format_map(context)


def _options_of(path: Path) -> tuple[str, ...]:
    """The names of the options in the section at `path`."""
    section: type[BaseModel] | None = Config
    parts = iter(path)
    for part in parts:
        field = section.model_fields.get(str(part)) if section is not None else None
        section = section_in(field.annotation) if field is not None else None
        if field is not None and get_origin(field.annotation) in (dict, tuple):
            next(parts, None)  # a name or an index
    return tuple(field.alias or name for name, field in section.model_fields.items()) if section is not None else ()
