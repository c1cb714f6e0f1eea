"""`load`: file and environment to a `Config`, or everything that is wrong with them at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path as FilePath
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.config.checks import Available, check, read_secrets
from gateway.config.environment import FILE_VARIABLE, merged, read_environment
from gateway.config.faults import ENVIRONMENT, WHOLE, ConfigError, Fault, Path, Positions, locate
from gateway.config.model import Config
from gateway.config.source import Unreadable, read_yaml

# pydantic's error type -> our words, which never hold the value.
_WORDS = {
    "missing": "is required",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text; put it in quotes",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "does not have the right form",
    "model_type": "must be a section of options",
    "model_attributes_type": "must be a section of options",
    "dict_type": "must be a mapping of names",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "frozen_set_type": "must be a list",
}

# What keeps an entry whose required option is missing or wrong, while the rest of it is checked.
_STAND_INS: dict[str | int, Any] = {
    "backend": "-",
    "workers": ["http://127.0.0.1"],
    "hash": "sha256:" + "0" * 64,
    "aws_access_key_id": "stand-in",
    "issuer": "-",
    "audience": "-",
    "addresses": ["127.0.0.1:1"],
    "name": "-",
    "kind": "requests",
    "limit": 1,
}


def config_file(environ: Mapping[str, str] | None = None) -> str | None:
    """The file to read where nobody names one: that of DRAGOMAN_CONFIG, else ./gateway.yaml if it is there, or None."""
    environ = os.environ if environ is None else environ
    return environ.get(FILE_VARIABLE) or ("gateway.yaml" if os.path.isfile("gateway.yaml") else None)


def load(
    path: str | os.PathLike[str] | None, known: Available | None = None, environ: Mapping[str, str] | None = None
) -> Config:
    """The configuration in the file at `path`, with the environment on top.

    path     None is the file that DRAGOMAN_CONFIG names, or the environment alone
    known    the dialects and backends there are; without it their names are not checked
    environ  os.environ unless given

    Raises `ConfigError` with all faults. Also reads the secrets that the configuration refers to.
    """
    environ = os.environ if environ is None else environ
    path = path if path is not None else environ.get(FILE_VARIABLE) or None
    gathered = _Gathered(path, environ)
    faults = gathered.faults
    config, more, wrong = _validated(gathered)
    faults += more
    found = [*check(config, gathered.values, known, gathered.more_keys), *read_secrets(config, environ, known)]
    # What is wrong in itself already was left out or replaced: what seems wrong around it proves nothing.
    faults += [locate(gathered.positions, path).fault(text) for path, text in found if not _within(path, wrong)]
    if faults:
        raise ConfigError(sorted(_one_each(faults), key=gathered.order))
    return config


def _one_each(faults: list[Fault]) -> list[Fault]:
    """The first fault of each place in a file: a value that is wrong in one way often is in others that follow."""
    first: dict[tuple[str, int, str, str], Fault] = {}
    for fault in faults:
        message = fault.message if fault.file == ENVIRONMENT else ""
        first.setdefault((fault.file, fault.line, fault.key, message), fault)
    return list(first.values())


def _within(path: Path, wrong: set[Path]) -> bool:
    """`path` is one of `wrong`, inside of one, or right above one."""
    return any(path[:length] in wrong for length in range(1, len(path) + 1)) or any(one[:-1] == path for one in wrong)


class _Gathered:
    """All values before validation, from every place, and where each was written."""

    def __init__(self, path: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> None:
        self.positions: Positions = {}
        self.faults: list[Fault] = []
        self.files: list[str] = []
        self.values: dict[str, Any] = {}
        self.folder = FilePath()
        self.more_keys = False  # there may be keys, in a file that could not be read
        if path is not None:
            self.folder = FilePath(path).parent
            self.values = self._read(FilePath(path), os.fspath(path), ())
        values, positions, faults = read_environment(environ, self.values)
        self._overlay(values, positions)
        self.faults += faults
        self._add_keys_file()
        self._resolve_paths()

    def order(self, fault: Fault) -> tuple[int, int, str, str]:
        """Files in the order of their reading, then the environment; within a file by line."""
        place = self.files.index(fault.file) if fault.file in self.files else len(self.files)
        return place, fault.line, fault.key, fault.message

    def _read(self, path: FilePath, name: str, at: Path) -> dict[str, Any]:
        self.files.append(name)
        try:
            values, positions, faults = read_yaml(path, name, at)
        except Unreadable as stop:
            # What the file would have said is unknown: judging the rest would only raise false alarms.
            raise ConfigError([*self.faults, stop.fault]) from None
        self.faults += faults
        if values is not None and not isinstance(values, dict):
            raise ConfigError([*self.faults, Fault(name, 1, WHOLE, "must be a mapping of options")])
        self.positions.update({path: place for path, place in positions.items() if path not in self.positions})
        return values or {}

    def _overlay(self, values: dict[str, Any], positions: Positions) -> None:
        leaves = {path for path in positions if not isinstance(_at(values, path), dict)}
        for path in list(self.positions) if leaves else ():
            if any(path[:length] in leaves for length in range(1, len(path) + 1)):
                del self.positions[path]
        for path, place in positions.items():
            if path in leaves or path not in self.positions:
                self.positions[path] = place
        self.values = merged({name: value for name, value in self.values.items() if value is not None}, values)

    def _add_keys_file(self) -> None:
        name = self.values.get("keys_file")
        if not isinstance(name, str) or not name:
            return
        path = self.folder / name
        try:
            more = self._read(path, os.fspath(path), ("keys",))
        except ConfigError as error:
            self.faults = error.faults
            self.more_keys = True
            stop = self.faults[-1]
            if stop.key == WHOLE and stop.message.startswith("cannot be read: "):
                self.faults[-1] = locate(self.positions, ("keys_file",)).fault(f"names a file that {stop.message}")
            return
        keys = self.values.get("keys") or {}
        if not isinstance(keys, dict):
            return
        for key in keys.keys() & more.keys():
            place = locate(self.positions, ("keys", key))
            self.faults.append(place.fault("is also in keys_file"))
        self.values["keys"] = {**more, **keys}

    def _resolve_paths(self) -> None:
        models = self.values.get("models")
        keys = self.values.get("keys")
        for options in [
            *(models.values() if isinstance(models, dict) else ()),
            *(keys.values() if isinstance(keys, dict) else ()),
            *map(self.values.get, ("redis", "jwt", "cache_salt")),
            self.values,
        ]:
            for name, value in options.items() if isinstance(options, dict) else ():
                if str(name).endswith("_file") and isinstance(value, str) and value:
                    options[name] = os.fspath(self.folder / value)


def _at(values: Any, path: Path) -> Any:
    for part in path:
        values = values[part]
    return values


def _validated(gathered: _Gathered) -> tuple[Config, list[Fault], set[Path]]:
    """The configuration, what was wrong with it, and where.

    With faults it is what remains without the wrong values, so that the checks across options still run: all that is
    wrong is to be said at once.
    """
    values: Any = dict(gathered.values)
    faults: list[Fault] = []
    wrong: set[Path] = set()
    # BaseSettings takes arguments of its own, which begin with an underscore; a file must not reach them.
    for name in [name for name in values if name.startswith("_")]:
        faults.append(locate(gathered.positions, (name,)).fault("is not an option"))
        del values[name]
    while True:
        try:
            return Config(**values), faults, wrong
        except ValidationError as error:
            found = [(tuple(part for part in one["loc"] if part != "[key]"), one) for one in _details(error)]
            if not wrong:
                for path, detail in found:
                    faults.append(locate(gathered.positions, path).fault(_message(detail, path)))
            # Items before their lists, and the last item first, so that indices stay true while items are left out.
            paths = sorted((path for path, _ in found), key=len)
            for path in paths[::-1]:
                while path in wrong:
                    path = path[:-1]
                if not path:
                    raise ConfigError(faults) from None
                wrong.add(path)
                values = _without(values, path)


def _details(error: ValidationError) -> list[ErrorDetails]:
    """pydantic's complaints, without "too few items" about a list whose items were refused themselves."""
    details = error.errors(include_url=False, include_input=False)
    holders = {one["loc"][:-1] for one in details}
    return [one for one in details if one["type"] != "too_short" or one["loc"] not in holders]


def _without(values: Any, path: Path) -> Any:
    """A copy of `values` without `path`, or with a stand-in there if it is required."""
    head, rest = path[0], path[1:]
    if isinstance(values, list) and isinstance(head, int) and head < len(values):
        kept = [_without(values[head], rest)] if rest and isinstance(values[head], (dict, list)) else []
        return [*values[:head], *kept, *values[head + 1 :]]
    if not isinstance(values, dict):
        return values
    if rest and isinstance(values.get(head), (dict, list)):
        return {**values, head: _without(values[head], rest)}
    if head in _STAND_INS and len(path) == 1:
        return {**values, head: _STAND_INS[head]}
    return {name: value for name, value in values.items() if name != head}


def _message(detail: ErrorDetails, path: Path) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        near = get_close_matches(str(path[-1]), _options_of(path[:-1]), 1)
        return "is not an option" + (f"; did you mean {near[0]}?" if near else "")
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return f"must be one of {str(context['expected']).replace(' or ', ', ').replace(chr(39), '')}"
    if kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal"):
        sign, words = {
            "greater_than": ("gt", "greater than"),
            "greater_than_equal": ("ge", "at least"),
            "less_than": ("lt", "less than"),
            "less_than_equal": ("le", "at most"),
        }[kind]
        return f"must be {words} {context[sign]:.12g}"
    if kind == "too_short":
        return f"must have at least {context['min_length']} item{'s' * (context['min_length'] != 1)}"
    if kind == "too_long":
        return f"must have at most {context['max_length']} items"
    return _WORDS.get(kind, "is not a valid value")


def _item_of(kind: Any) -> Any:
    """What a mapping or a list holds."""
    if get_origin(kind) is dict:
        return get_args(kind)[-1]
    return get_args(kind)[0] if get_origin(kind) is tuple else None


def _options_of(path: Path) -> list[str]:
    """The names of the options in the section at `path`."""
    kind: Any = Config
    for part in path:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            field = kind.model_fields.get(str(part))
            kind = field.annotation if field else None
        else:
            kind = _item_of(kind)
        if type(None) in get_args(kind):
            kind = get_args(kind)[0]
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []
