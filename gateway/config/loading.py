"""`load` reads the file and the environment into a `Config`, or reports all that is wrong with them at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path as FilePath
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.config.available import Available
from gateway.config.checks import check
from gateway.config.environment import FILE_VARIABLE, merged, read_environment
from gateway.config.faults import Finding, Message, Path, Position, Positions, Unknown, locate, told
from gateway.config.model import Config
from gateway.config.secrets import read_secrets, with_secrets
from gateway.config.source import NOT_READ, Unreadable, read_yaml

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
    "model_type": "must be a section of options",
    "model_attributes_type": "must be a section of options",
    "dict_type": "must be a mapping of names",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "frozen_set_type": "must be a list",
}

# Values for required options that are missing or wrong, so that the rest of their entry can still be checked.
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
    findings = gathered.findings
    config, more, wrong = _validated(gathered)
    findings += more
    secrets, unread = read_secrets(config, environ, known)
    # What is wrong in itself already was left out or replaced: what seems wrong in it or right above it is no proof.
    doubtful = wrong | {one[:-1] for one in wrong}
    for at, message in [*check(config, gathered.values, known, gathered.more_keys), *unread]:
        if at not in doubtful and not any(at[:length] in wrong for length in range(1, len(at))):
            findings.append((locate(gathered.positions, at), message))
    if findings:
        raise told(findings, gathered.files)
    return with_secrets(config, secrets)


class _Gathered:
    """All values before validation, from every place, and where each was written."""

    def __init__(self, path: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> None:
        self.positions: Positions = {}
        self.findings: list[Finding] = []
        self.files: list[str] = []
        self.values: dict[str, Any] = {}
        self.folder = FilePath()
        self.more_keys = False  # the keys file could not be read: there may be keys in it
        if path is not None:
            self.folder = FilePath(path).parent
            try:
                self.values = self._read(FilePath(path), os.fspath(path), ())
            except Unreadable as stop:
                # What the file would have said is unknown: judging the rest would only raise false alarms.
                raise told([*self.findings, (stop.position, stop.message)], self.files) from None
        values, positions, findings = read_environment(environ, self.values)
        self._overlay(values, positions)
        self.findings += findings
        self._add_keys_file()
        self._resolve_paths()

    def _read(self, path: FilePath, name: str, at: Path) -> dict[str, Any]:
        """Raises Unreadable."""
        self.files.append(name)
        values, positions, findings = read_yaml(path, name, at)
        self.findings += findings
        if values is not None and not isinstance(values, dict):
            raise Unreadable(Position(name, 1, None, ()), "must be a mapping of options")
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
        except Unreadable as stop:
            self.more_keys = True
            if stop.message.startswith(NOT_READ):
                self.findings.append((locate(self.positions, ("keys_file",)), f"names a file that {stop.message}"))
            else:
                self.findings.append((stop.position, stop.message))
            return
        keys = self.values.get("keys") or {}
        if not isinstance(keys, dict):
            return
        for key in keys.keys() & more.keys():
            self.findings.append((locate(self.positions, ("keys", key)), "is also in keys_file"))
        self.values["keys"] = {**more, **keys}

    def _resolve_paths(self) -> None:
        models = self.values.get("models")
        keys = self.values.get("keys")
        for options in [
            *(models.values() if isinstance(models, dict) else ()),
            *(keys.values() if isinstance(keys, dict) else ()),
            *self.values.values(),
            self.values,
        ]:
            for name, value in options.items() if isinstance(options, dict) else ():
                if str(name).endswith("_file") and isinstance(value, str) and value:
                    options[name] = os.fspath(self.folder / value)


def _at(values: Any, path: Path) -> Any:
    for part in path:
        values = values[part]
    return values


def _validated(gathered: _Gathered) -> tuple[Config, list[Finding], set[Path]]:
    """The configuration, what was wrong with it, and where.

    With findings it is what remains without the wrong values, so that the checks across options still run: all that is
    wrong is to be said at once.
    """
    values: Any = dict(gathered.values)
    findings: list[Finding] = []
    wrong: set[Path] = set()
    while True:
        try:
            return Config(**values), findings, wrong
        except ValidationError as error:
            found = [(tuple(part for part in one["loc"] if part != "[key]"), one) for one in _details(error)]
            if not wrong:
                for path, detail in found:
                    findings.append((locate(gathered.positions, path), _message(detail, path)))
            without: _Tree = {}
            for path, _ in found:
                while path in wrong:
                    path = path[:-1]
                if not path:
                    raise told(findings, gathered.files) from None
                without_here = without
                for part in path:
                    without_here = without_here.setdefault(part, {})
                without_here[_HERE] = {}
            # Only now: the paths of one round may lead to one place.
            wrong.update(_paths(without))
            values = _without(values, without)


def _details(error: ValidationError) -> list[ErrorDetails]:
    """pydantic's errors, without "too few items" for a list whose items have errors of their own."""
    details = error.errors(include_url=False, include_input=False)
    holders = {one["loc"][:-1] for one in details}
    return [one for one in details if one["type"] != "too_short" or one["loc"] not in holders]


_Tree = dict[str | int | None, "_Tree"]
"""Paths, joined where they begin alike; `_HERE` marks where one ends."""
_HERE = None


def _paths(tree: _Tree, above: Path = ()) -> Iterator[Path]:
    for part, inner in tree.items():
        if part is None:
            yield above
        else:
            yield from _paths(inner, (*above, part))


def _without(values: Any, wrong: _Tree) -> Any:
    """A copy of `values` without what `wrong` leads to, or with a stand-in there if it is required."""
    if isinstance(values, list):
        kept = []
        for index, value in enumerate(values):
            inner = wrong.get(index)
            if inner is None:
                kept.append(value)
            elif _HERE not in inner and isinstance(value, (dict, list)):
                kept.append(_without(value, inner))
        return kept
    if not isinstance(values, dict):
        return values
    left = dict(values)
    for name, inner in wrong.items():
        if name is None:
            continue
        value = values.get(name)
        if _HERE not in inner and isinstance(value, (dict, list)):
            left[name] = _without(value, inner)
        elif _HERE in inner and name in _STAND_INS:
            left[name] = _STAND_INS[name]
        else:
            left.pop(name, None)
    return left


def _message(detail: ErrorDetails, path: Path) -> Message:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return Unknown("is not an option", str(path[-1]), _options_of(path[:-1]))
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
    if kind == "string_pattern_mismatch":
        return f"must match {context['pattern']}"
    return _WORDS.get(kind, "is not a valid value")


def _item_of(kind: Any) -> Any:
    """The type of the values of a mapping or of the items of a list."""
    if get_origin(kind) is dict:
        return get_args(kind)[-1]
    return get_args(kind)[0] if get_origin(kind) is tuple else None


def _options_of(path: Path) -> tuple[str, ...]:
    """The names of the options in the section at `path`."""
    kind: Any = Config
    for part in path:
        kind = _held(kind, part if _is_section(kind) else None)
    return tuple(kind.model_fields) if _is_section(kind) else ()


@cache
def _held(kind: Any, option: str | int | None) -> Any:
    """The type of an option of the section `kind`; without one, of the values of a mapping or the items of a list."""
    if option is None:
        found = _item_of(kind)
    else:
        field = kind.model_fields.get(option)
        found = field.annotation if field else None
    return get_args(found)[0] if type(None) in get_args(found) else found


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
