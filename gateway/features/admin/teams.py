"""Teams as admins see and change them: the entry that bounds a team's callers, and how many keys it has."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from datetime import datetime
from math import inf
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from gateway.auth import TEAM_OPTIONS, Admin, StoredKey, StoredTeam, options_of
from gateway.auth.key_mirror import KeyMirror
from gateway.auth.key_store import MOST_BYTES, Event, Other
from gateway.auth.stored import TeamOptions
from gateway.config import Available, Config, Key, Team, team_of
from gateway.config.kinds import nano
from gateway.config.teams import is_for
from gateway.features.admin.changes import TRIES, Problem, forbidden, name_of


class TeamView(TeamOptions, frozen=True, kw_only=True, omit_defaults=False):
    """A team. where: in the store, in the configuration, or named by its keys alone, without an entry. keys: how many
    it has that are not revoked."""

    name: str
    where: Literal["store", "configuration", "keys"] = "store"
    keys: int
    created: datetime | None = None
    created_by: str | None = None
    changed: datetime | None = None
    changed_by: str | None = None
    version: int = 0


class TeamPage(Struct):
    """Teams by name. next: `after` of the next page; null on the last."""

    teams: list[TeamView]
    next: str | None


class CreateTeam(TeamOptions, frozen=True, kw_only=True, omit_defaults=True):
    """The entry of a team, which may have keys already."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]


class DeletedTeam(Struct):
    """The entry is gone. The team's keys stay, by the rules of the configuration alone."""

    name: str


class TeamChanges:
    """The teams of the store as admins change them. log: called with a level, an event and facts."""

    def __init__(self, config: Config, known: Available | None, mirror: KeyMirror, log: Callable[..., None]) -> None:
        self._config = config
        self._known = known
        self._mirror = mirror
        self._log = log

    async def views(self) -> Mapping[str, TeamView]:
        """All teams that have an entry or keys, by name."""
        return await asyncio.to_thread(_views, self._keys(), list(self._mirror.teams.values()), self._config.teams)

    def _view(self, team: StoredTeam) -> TeamView:
        return _of_store(team, sum(_counts(key) for key in self._keys() if key.team == team.name))

    def _keys(self) -> list[Key | StoredKey]:
        return [*self._config.keys.values(), *self._mirror.keys.values()]

    async def view(self, admin: Admin, name: str) -> TeamView:
        """Raises Problem."""
        found = (await self.views()).get(name)
        if found is None or not admin.may(name):
            raise _absent()
        return found

    async def create(self, admin: Admin, given: Mapping[str, Any]) -> TeamView:
        options = dict(given)
        name = name_of(options)
        if not admin.all:
            raise forbidden(f"teams are made by admins of all keys; yours: {', '.join(sorted(admin.teams or ()))}")
        team = self._checked(admin, name, options, None)

        def made(before: StoredTeam | None) -> StoredTeam:
            living = before if before is not None and not before.gone else None
            if living is not None and name not in self._config.teams and options_of(living) == options_of(team):
                return living  # the first try, whose answer was lost
            if living is not None or name in self._config.teams:
                raise Problem(409, "name_taken", "there is a team with this name, in the store or in the configuration")
            most = self._config.stored_keys.max_keys
            if len(self._mirror.teams) - len(self._mirror.deleted) >= most:
                raise Problem(409, "full", f"there are {most} teams, the most that stored_keys.max_keys allows")
            return team

        return await self._change(admin, name, "create team", made, tuple(given))

    async def update(self, admin: Admin, name: str, given: Mapping[str, Any]) -> TeamView:
        """Options that are null in `given` are taken away."""

        def changed(found: StoredTeam | None) -> StoredTeam:
            before = self._living(admin, name, found)
            options = {**options_of(before), **given}
            # A null takes an option away. A name that no option has is a fault, as with any other value.
            options = {one: value for one, value in options.items() if value is not None or one not in TEAM_OPTIONS}
            team = self._checked(admin, name, options, before, {*TEAM_OPTIONS} - given.keys())
            if admin.teams is not None:
                self._modest(team, before)
            return team

        return await self._change(admin, name, "update team", changed, tuple(given))

    async def delete(self, admin: Admin, name: str) -> DeletedTeam:
        def gone(found: StoredTeam | None) -> StoredTeam:
            if found is not None and found.gone and admin.all and name not in self._config.teams:
                return found  # as above
            before, now = self._living(admin, name, found), time.time()
            if not admin.all:
                raise forbidden("teams are deleted by admins of all keys")
            if before.disabled:  # its keys and tokens would be served again, without any bound of the team
                why = "the team is disabled: revoke its keys or give them another team, then enable and delete it"
                raise Problem(409, "team_disabled", why)
            return replace(before, changed=now, changed_by=admin.name, deleted=now)

        await self._change(admin, name, "delete team", gone, ())
        return DeletedTeam(name)

    # -- what they share --------------------------------------------------------------------------------------------

    def _living(self, admin: Admin, name: str, found: StoredTeam | None) -> StoredTeam:
        """Raises Problem: another admin's team is answered as one that does not exist."""
        if name in self._config.teams and admin.may(name):
            raise Problem(409, "configured", "the team stands in the configuration: change it there and reload")
        if found is None or found.gone or not admin.may(name):
            raise _absent()
        return found

    def _checked(
        self,
        admin: Admin,
        name: str,
        options: Mapping[str, Any],
        before: StoredTeam | None,
        unchanged: Container[object] = (),
    ) -> StoredTeam:
        """The team with exactly these options. unchanged: as for `key_of`. Raises Problem."""
        try:
            checked = team_of(self._config, self._known, name, options, unchanged)
        except ValueError as error:
            raise Problem(422, "invalid", str(error)) from None
        found, now = checked.model_dump(mode="json", exclude_defaults=True), time.time()
        made = {"created": now, "created_by": admin.name}
        if before is not None:
            made = {"created": before.created, "created_by": before.created_by}
        team = msgspec.convert({**found, **made, "name": name, "changed": now, "changed_by": admin.name}, StoredTeam)
        if len(msgspec.json.encode(team)) > MOST_BYTES:
            raise Problem(422, "too_large", f"the team has more than {MOST_BYTES} bytes as JSON")
        return team

    def _modest(self, team: StoredTeam, before: StoredTeam) -> None:
        """A lead may bind its own team more, and not less."""
        if before.disabled and not team.disabled:
            raise forbidden("disabled: is taken away by admins of all keys only")
        if before.models is not None and not self._resolved(team) <= self._resolved(before):
            raise forbidden("models: are added by admins of all keys only")
        bounds = [("limits", one.name, one.limit) for one in self._config.limits if is_for(one, team.name)]
        bounds += [("budgets", one.name, one.amount) for one in self._config.budgets if is_for(one, team.name)]
        now, then = _numbers(team), _numbers(before)
        for option, name in now.keys() | then.keys():
            general = [number for kind, one, number in bounds if (kind, one) == (option, name)]
            most = then.get((option, name), min(general, default=inf))
            if now.get((option, name), max(general, default=inf)) > most:
                raise forbidden(f"{option}.{name}: is raised by admins of all keys only")

    def _resolved(self, team: StoredTeam) -> frozenset[str]:
        """The models of the team; all for one that has none."""
        models = self._config.models if team.models is None else team.models
        return frozenset(self._config.resolve(one) or one for one in models)

    async def _change(
        self,
        admin: Admin,
        name: str,
        what: str,
        changed: Callable[[StoredTeam | None], StoredTeam],
        options: tuple[str, ...],
    ) -> TeamView:
        store = self._mirror.store
        before = self._mirror.teams.get(name)
        if before is None and (before := await store.find_team(name)) is not None:
            self._mirror.learn(before)  # another gateway has just made it
        expected = before.version if before is not None else 0
        for _ in range(TRIES):
            team = changed(before)
            if team is before:
                return self._view(team)
            event = Event(time.time(), admin.name, what, name, name, options)
            drop = self._mirror.dropped("team") if team.gone else None
            try:
                team = replace(team, version=await store.change(team, expected, event, drop=drop))
            except Other as other:  # changed by another gateway, or lost by Redis
                expected = other.team.version if other.team is not None else 0
                if other.team is not None:
                    self._mirror.learn(other.team)
                before = self._mirror.teams.get(name)
                continue
            self._mirror.learn(team)
            self._log("info", "team of the store changed", team=name, what=what, by=admin.name)
            return self._view(team)
        if before is None and expected == 0:
            raise Problem(409, "name_taken", "the store has an entry of this name that is not a team")
        raise Problem(409, "conflict", "others change this team at the same time")


def _absent() -> Problem:
    return Problem(404, "no_team", "there is no such team in the store")


def _numbers(team: StoredTeam) -> dict[tuple[str, str], int]:
    """The team's own, by option and rule; amounts in nano."""
    found = {("limits", name): number for name, number in team.limits.items()}
    return found | {("budgets", name): nano(amount) for name, amount in team.budgets.items()}


def _counts(key: Key | StoredKey) -> bool:
    return not (isinstance(key, StoredKey) and key.gone)


def _views(
    keys: Sequence[Key | StoredKey], stored: Sequence[StoredTeam], configured: Mapping[str, Team]
) -> Mapping[str, TeamView]:
    members = Counter(key.team for key in keys if key.team is not None and _counts(key))
    found = {name: TeamView(name=name, where="keys", keys=count) for name, count in members.items()}
    found |= {team.name: _of_store(team, members[team.name]) for team in stored if not team.gone}
    for name, team in configured.items():
        options = team.model_dump(mode="json", exclude_defaults=True)
        about = {"name": name, "where": "configuration", "keys": members[name]}
        found[name] = msgspec.convert(options | about, TeamView)
    return found


def _of_store(team: StoredTeam, keys: int) -> TeamView:
    about = {**msgspec.to_builtins(team), "keys": keys, "version": team.version}
    return msgspec.convert(about, TeamView, strict=False)
