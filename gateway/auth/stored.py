"""A key that was made while gateways ran, and a team, as `keys_store` holds them: their options and their history.

The options are those of an entry in gateway.yaml, but for pairs that sign requests: the secret of such a pair would
have to be stored itself.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct, to_builtins

from gateway.config import Key, Team
from gateway.config.sharing import MOST

Hash = Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$")]
_Name = Annotated[str, Meta(min_length=1, max_length=200)]
_Number = Annotated[int, Meta(ge=1, le=MOST)]
Moment = Annotated[float, Meta(ge=0, le=253_402_214_400)]
"""Unix seconds, before the end of the year 9999: later ones cannot be shown."""
MOST_OLD = 4
"""Replaced secrets of one key that are still valid."""


class OldSecret(Struct, frozen=True, omit_defaults=True):
    """A secret that was replaced and is valid until then, in Unix seconds."""

    hash: Hash
    until: Moment
    id: str | None = None


class OwnLimits(Struct, frozen=True, omit_defaults=True):
    """See `gateway.config.sharing.KeyLimits`. budget: an amount as it is written there."""

    budget: str | None = None
    requests: _Number | None = None
    tokens: _Number | None = None
    concurrency: _Number | None = None
    streams: _Number | None = None
    connections: _Number | None = None


class KeyOptions(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """See `gateway.config.Key`."""

    team: _Name | None = None
    models: tuple[_Name, ...] | None = None
    aliases: dict[_Name, _Name] = {}
    dialects: tuple[_Name, ...] | None = None
    expires: datetime | None = None
    disabled: bool = False
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    limits: OwnLimits | None = None
    log_prompts_until: datetime | None = None


class StoredKey(KeyOptions, frozen=True, omit_defaults=True, kw_only=True):
    """A key and what became of it. Times are Unix seconds.

    name, hash, id  see `gateway.config.Key`
    old             replaced secrets
    seal            the hash of its first secret, by which its callers' texts are sealed, whatever replaces that
    created_by      the admin
    revoked         when it was refused for ever; None while it was not
    version         of the change that made it so: grows with every change of any key. Not a part of the stored text
    """

    name: _Name
    hash: Hash
    id: str | None = None
    old: Annotated[tuple[OldSecret, ...], Meta(max_length=MOST_OLD)] = ()
    seal: Hash
    created: Moment
    created_by: str
    changed: Moment
    changed_by: str
    revoked: Moment | None = None
    version: int = 0

    @property
    def gone(self) -> bool:
        return self.revoked is not None


class TeamOptions(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """See `gateway.config.Team`. budgets: amounts as they are written there."""

    models: tuple[_Name, ...] | None = None
    limits: dict[str, _Number] = {}
    budgets: dict[str, str] = {}
    disabled: bool = False
    description: Annotated[str, Meta(max_length=1000)] | None = None


class StoredTeam(TeamOptions, frozen=True, omit_defaults=True, kw_only=True):
    """A team and what became of it. Its fields are those of `StoredKey`; deleted: when its entry went, which stays as
    such, so that an old copy does not bring it back."""

    name: _Name
    created: Moment
    created_by: str
    changed: Moment
    changed_by: str
    deleted: Moment | None = None
    version: int = 0

    @property
    def team(self) -> str:
        return self.name

    @property
    def gone(self) -> bool:
        return self.deleted is not None


Stored = StoredKey | StoredTeam

_IN_FILES = ("hash", "id", "match")
OPTIONS = tuple(name for name in Key.model_fields if name not in _IN_FILES and not name.startswith("aws_"))
"""The options that an admin may give a key; as in gateway.yaml."""
TEAM_OPTIONS = tuple(Team.model_fields)


def options_of(one: Stored) -> dict[str, Any]:
    """The options that it has, as an admin would give them."""
    found: dict[str, Any] = to_builtins(one)
    return {name: found[name] for name in (OPTIONS if isinstance(one, StoredKey) else TEAM_OPTIONS) if name in found}
