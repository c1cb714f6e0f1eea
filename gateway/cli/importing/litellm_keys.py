"""Keys and teams of LiteLLM's database, by the hashes that it keeps: the SHA-256 of each key, as here.

The rows are those of the tables LiteLLM_VerificationToken, LiteLLM_TeamTable and LiteLLM_BudgetTable, or the objects
of `/key/list?return_full_object=true` and `/team/list`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from gateway.cli import CommandError
from gateway.cli.importing.drafts import Draft, Options, plain
from gateway.cli.importing.litellm import LiteLLM
from gateway.cli.importing.litellm_budgets import add_budget, amount, period

_HASH = re.compile(r"[0-9a-f]{64}\Z")
_COLUMNS = """key_name spend model_spend created_at created_by updated_at updated_by budget_reset_at last_active
    soft_budget_cooldown rotation_count last_rotation_at key_rotation_at auto_rotate members_with_roles members admins
    team_alias team_id budget_id litellm_budget_table keys team_memberships team_member_budget_table
    user created_by_user last_refreshed_at"""
_BOOKKEEPING = frozenset(_COLUMNS.split())
"""Columns beside options: who made it, when, and what it has spent."""
_REASONS = {
    "organization_id": "has no counterpart: models, limits and budget of an organization are not taken over",
    "user_id": "has no counterpart: a key is its name's, and a user's own budget is not taken over",
    "project_id": "has no counterpart: models, limits and budget of a project are not taken over",
    "access_group_ids": "has no counterpart: models of an access group in LiteLLM's database are not taken over",
    "router_settings": "has no counterpart: fallbacks are those of the models",
    "allowed_routes": "has no counterpart: THE KEY MAY CALL MORE THAN BEFORE; bound it by `dialects`",
    "permissions": "has no counterpart: look whether it took something away",
    "soft_budget": "has no counterpart: warn_at of a budget is a share of it",
    **dict.fromkeys(("model_max_budget", "model_rpm_limit", "model_tpm_limit"), "is not a mapping of models"),
}
_LISTS = frozenset(["keys", "teams", "budgets"])
_LIMITS = (
    ("rpm_limit", "requests"),
    ("tpm_limit", "tokens"),
    ("max_parallel_requests", "concurrency"),
)
_OF_MODELS = (("model_rpm_limit", "requests"), ("model_tpm_limit", "tokens"), ("model_max_budget", "budget"))


class Spent(NamedTuple):
    """An amount that LiteLLM has counted to the budget of a key, or of a team, since it was last reset."""

    key: str
    team: str | None
    amount: object


class TakenIn(NamedTuple):
    """Keys and teams, how many there are of each."""

    keys: int
    teams: int
    spent: list[Spent]


def rows(text: bytes, name: str) -> list[dict[str, Any]]:
    """The rows of a file: one JSON value, or a line of JSON each. Raises CommandError."""
    try:
        try:
            found = [json.loads(text)]
        except ValueError:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        return list(_objects(plain(found), name))
    except (ValueError, RecursionError):
        raise CommandError(f"{name} is neither JSON nor lines of JSON") from None


def _objects(values: Iterable[object], name: str) -> Iterator[dict[str, Any]]:
    for value in values:
        if isinstance(value, list):
            yield from _objects(value, name)
        elif isinstance(value, dict) and not {"token", "team_id"} & value.keys() and _LISTS & value.keys():
            yield from _objects([value.get(one) or [] for one in sorted(_LISTS)], name)
        elif isinstance(value, dict):
            yield value
        elif isinstance(value, str) and _HASH.match(value):
            raise CommandError(f"{name} holds hashes without options: ask for /key/list?return_full_object=true")
        else:
            raise CommandError(f"{name} holds something other than rows of keys, teams and budgets")


def models_named(found: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The models that keys and teams name."""
    for row in found:
        yield from _listed(row.get("models"))
        if isinstance(aliases := row.get("aliases"), dict):
            yield from map(str, aliases.values())


def take_in(draft: Draft, config: LiteLLM, found: list[dict[str, Any]]) -> TakenIn:
    """Adds keys and teams, and what budgets go by."""
    spent: list[Spent] = []
    if strange := [row for row in found if row.get("token") and not isinstance(row["token"], str)]:
        draft.left_out("--keys", f"{len(strange)} rows have a token that is not text", ("keys",))
        found = [row for row in found if not row.get("token") or isinstance(row["token"], str)]
    keys = list({row["token"]: row for row in found if row.get("token")}.values())
    teams = {str(row["team_id"]): row for row in found if not row.get("token") and row.get("team_id")}
    budgets = {
        str(row["budget_id"]): row
        for row in found
        if "token" not in row and "team_id" not in row and "budget_id" in row
    }
    if others := sum(not (row.get("token") or row.get("team_id") or row.get("budget_id")) for row in found):
        draft.left_out("--keys", f"{others} rows are of no key, team or budget", ("keys",))
    names = _names((id_, row.get("team_alias") or id_) for id_, row in teams.items())
    for id_, row in teams.items():
        _team(draft, config, _full(row, budgets), names[id_], spent)
    hashes = [row["token"] for row in keys]
    entries = _names((hash_, row.get("key_alias")) for hash_, row in zip(hashes, keys, strict=True))
    for id_ in dict.fromkeys(str(row["team_id"]) for row in keys if row.get("team_id")):
        if id_ not in teams:
            draft.left_out(
                f"team {id_}", "its models, limits and budget are unknown: its row is not in the files", ("keys",)
            )
    for hash_, row in zip(hashes, keys, strict=True):
        team = str(row["team_id"]) if row.get("team_id") else None
        own, name = _full(row, budgets), entries[hash_]
        _key(draft, config, own, name, names.get(team or "", team), team in teams, spent)
    if entries:
        draft.section("listen")["host"] = "0.0.0.0"  # as LiteLLM does; without keys a gateway may not
    _prices(draft)
    return TakenIn(len(entries), len(teams), spent)


def _prices(draft: Draft) -> None:
    """LiteLLM goes by a list of prices of its own. Without any price here budgets would be refused."""
    models: dict[str, Any] = draft.values["models"]
    own = any("budget" in key.get("limits", {}) for key in draft.values.get("keys", {}).values())
    teams = any("budgets" in team for team in draft.values.get("teams", {}).values())
    bounded = "budgets" in draft.values or own or teams
    free = [name for name, model in models.items() if "price" not in model]
    for name in free if bounded else ():
        draft.todo[f"give the model {name} a price: without one it spends nothing of a budget (--prices)"] = None
    if bounded and len(free) == len(models):
        for name in free:
            models[name]["price"] = {"input": "0", "output": "0"}
            draft.left_out(f"price of {name}", "is in LiteLLM's own list: write it here", ("models", name, "price"))
    if any("price" in model for model in models.values()):
        draft.values["spend"] = {"currency": "USD"} | ({"daily": True} if "redis" in draft.values else {})


def _names(given: Iterable[tuple[str, object]]) -> dict[str, str]:
    """id -> a name that is one here, and nobody else's."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for id_, alias in given:
        plain = re.sub(r"[\s\x00-\x1f\x7f-\x9f\ud800-\udfff\"'`]+", "-", str(alias or ""))[:180]
        short = id_[:12] if _HASH.match(id_) else _sum(id_)[:12]
        name = plain if plain and not plain.startswith(("jwt:", "sk-", "dgm_")) else f"litellm-{short}"
        wanted, number = name, 1
        while name in taken:
            name, number = f"{wanted}-{number + 1}", number + 1
        taken.add(name)
        found[id_] = name
    return found


def _sum(text: str) -> str:
    """The SHA-256 of a text, which JSON may give half of a character."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _full(row: Mapping[str, Any], budgets: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The row, with what it takes from a budget of its own."""
    shared = row.get("litellm_budget_table") or budgets.get(str(row.get("budget_id")))
    own = {name: value for name, value in row.items() if value is not None}
    bounds = (
        *("max_budget", "budget_duration", "soft_budget", "model_max_budget"),
        *("rpm_limit", "tpm_limit", "max_parallel_requests"),
    )
    taken = {name: shared[name] for name in bounds if isinstance(shared, dict) and shared.get(name) is not None}
    return {**taken, **own}


def _key(
    draft: Draft,
    config: LiteLLM,
    row: dict[str, Any],
    name: str,
    team: str | None,
    known: bool,
    spent: list[Spent],
) -> None:
    """known: the team's row is there; an entry of the team's own bounds the key with it."""
    at = ("keys", name)
    given = Options(draft, f"key {name}", row)
    token: str = given.take("token")
    given.take("key_alias")
    hashed = token if _HASH.match(token) else _sum(token)
    entry: dict[str, Any] = {"hash": f"sha256:{hashed}"}
    if team is not None:
        entry["team"] = team
    listed = _listed(given.take("models"))
    models = _meant(draft, config, listed, at)
    if "all-team-models" in listed:
        models = None if known else []
    if models is not None:
        entry["models"] = models
    aliases = given.take("aliases", dict) or {}
    if aliases:
        entry["aliases"] = {str(alias): model for alias, model in aliases.items()}
    if (expires := given.take("expires")) is not None:
        entry["expires"] = expires
    _disabled(draft, given, row, entry, at)
    limits: dict[str, object] = dict(_numbers(given))
    budget, duration = given.number("max_budget"), given.take("budget_duration", str)
    if budget is not None and budget <= 0:
        pass  # it is disabled
    elif budget is not None and period(duration) == ("month", True):
        limits["budget"] = amount(budget)
    elif budget is not None:
        match = {"name": "key-budget", "scope": ["key"], "match": {"key": [name]}}
        add_budget(draft, f"key {name}", match, budget, duration)
    _further_budgets(draft, given, "key", name, at)
    if budget is not None and row.get("spend"):
        spent.append(Spent(name, None, row["spend"]))
    if limits:
        entry["limits"] = limits
    draft.section("keys")[name] = entry
    _of_models(draft, config, given, "key", name, at)
    given.rest(_REASONS, at, _BOOKKEEPING)


def _listed(models: object) -> list[str]:
    """Names in a list, or in the text that PostgreSQL writes for one: `{a,"b c"}`."""
    if isinstance(models, str):
        models = [one.strip('"') for one in models.strip("{}").split(",") if one]
    return [str(one) for one in models] if isinstance(models, list) else []


def _shut(row: Mapping[str, Any]) -> bool:
    """Whether a key or a team may do nothing: it is blocked, or a bound of it is 0."""
    bounds = Options(Draft(), "", row)
    found = [bounds.number(name) for name in ("rpm_limit", "tpm_limit", "max_parallel_requests")]
    budget = bounds.number("max_budget")
    none = any(most is not None and most < 1 for most in found) or (budget is not None and budget <= 0)
    return none or row.get("blocked") not in (None, False, "f", "false")


def _disabled(draft: Draft, given: Options, row: Mapping[str, Any], entry: dict[str, Any], at: tuple[str, str]) -> None:
    if _shut(row):
        entry["disabled"] = True
        draft.note(f"{at[1]} is disabled: it is blocked, or has a bound of 0", at)
    given.take("blocked")


def _numbers(given: Options) -> Iterator[tuple[str, int]]:
    """The kinds of limits that a key or a team has, each with its number."""
    for option, kind in _LIMITS:
        if (most := given.number(option)) is not None and most >= 1:
            yield kind, int(most)


def _meant(draft: Draft, config: LiteLLM, listed: list[str], at: tuple[str, str]) -> list[str] | None:
    if not listed or {"all-proxy-models", "*"} & set(listed):
        return None
    found: dict[str, None] = {}
    for one in listed:
        if one in ("all-team-models", "no-default-models"):
            continue
        names = config.groups.get(one) or [one]
        if one.endswith("*"):
            names = [name for name in config.names if name.startswith(one[:-1])]
        parts = [part for name in names for part in config.names.get(config.aliased(name), ())]
        if not parts:
            draft.left_out(f"{at[1]}.models", f"{one} is a model that is left out", at)
        found |= dict.fromkeys(parts)
    return list(found)


def _team(draft: Draft, config: LiteLLM, row: dict[str, Any], name: str, spent: list[Spent]) -> None:
    """Bounds for which every team may have a number are those of its entry; others are rules that match the team."""
    at = ("teams", name)
    given = Options(draft, f"team {name}", row)
    entry: dict[str, Any] = {}
    models = _meant(draft, config, _listed(given.take("models")), at)
    if models is not None:
        entry["models"] = models
    if limits := {f"team-{kind}": most for kind, most in _numbers(given)}:
        entry["limits"] = limits
    budget, duration = given.number("max_budget"), given.take("budget_duration", str)
    per, same = period(duration)
    if budget is not None and budget > 0 and (per, same) == ("month", True):
        entry["budgets"] = {"team-budget": amount(budget)}
    elif budget is not None and budget > 0:
        rule = {"name": f"team-{per}-budget", "scope": ["team"], "match": {"team": [name]}}
        add_budget(draft, f"team {name}", rule, budget, duration)
    if budget is not None and budget > 0 and row.get("spend"):
        spent.append(Spent("", name, row["spend"]))
    _disabled(draft, given, row, entry, at)
    if entry:
        draft.section("teams")[name] = entry
    _further_budgets(draft, given, "team", name, at)
    _of_models(draft, config, given, "team", name, at)
    given.rest(_REASONS, at, _BOOKKEEPING)


def _further_budgets(draft: Draft, given: Options, whose: str, name: str, at: tuple[str, str]) -> None:
    """Budgets of a key or a team for several lengths of time."""
    for one in given.inner("budget_limits", list) or []:
        found = Options(Draft(), "", one)
        most, window = found.number("max_budget"), found.take("budget_duration", str)
        rule = {"name": f"{whose}-budget-{_plain(window or 'total')}", "scope": [whose], "match": {whose: [name]}}
        if most is not None and most > 0 and isinstance(one, dict) and "model" not in one:
            add_budget(draft, f"{given.where}.budget_limits", rule, most, window)
            draft.mapped += 1
        else:
            why = f"is of another form: THE {whose.upper()} MAY SPEND MORE THAN BEFORE"
            draft.left_out(f"{given.where}.budget_limits", why, at)


def _plain(model: str) -> str:
    """A part of a limit's name for the model, another one for each."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "-", model)[:36]
    return plain if plain == model else f"{plain}-{_sum(model)[:6]}"


def _of_models(draft: Draft, config: LiteLLM, given: Options, whose: str, name: str, at: tuple[str, str]) -> None:
    """Limits and budgets of a key or a team for single models, which LiteLLM may keep in its metadata."""
    more = given.inner("metadata", dict) or {}
    metadata = Options(Draft(), "", more)
    for option, kind in _OF_MODELS:
        bounds = given.take(option, dict) or metadata.take(option, dict) or {}
        for model, bound in bounds.items():
            parts = _meant(draft, config, [str(model)], at)
            held = bound if isinstance(bound, dict) else {"budget_limit": bound}
            found = Options(Draft(), "", held)
            most = next((one for one in map(found.number, ("budget_limit", "max_budget")) if one is not None), None)
            if not parts or most is None or most <= 0 or (kind != "budget" and most < 1):
                why = "is not possible here" if parts else "is of a model that is left out"
                draft.left_out(f"{given.where}.{option}.{model}", f"{why}: look whether more is allowed now", at)
                continue
            rule = {
                "name": f"{whose}-{kind}-{_plain(str(model))}",
                "scope": [whose],
                "match": {whose: [name], "model": parts},
            }
            if kind == "budget":
                period_of = found.take("time_period", str) or found.take("budget_duration", str)
                add_budget(draft, f"{given.where}.{option}.{model}", rule, most, period_of)
            else:
                draft.item("limits", {**rule, "kind": kind, "limit": int(most)})
    if left := metadata.names():
        draft.left_out(f"{given.where}.metadata", f"has no counterpart: {', '.join(left)}", at)
