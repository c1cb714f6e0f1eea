"""`dragoman teams`: entries of teams, by the admin API of a running gateway."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from gateway.cli import CommandError, destructive, subcommand
from gateway.cli.admin_api import AdminApi, admin_options
from gateway.cli.colours import coloured
from gateway.cli.terminal import columns

ABOUT = (
    "An entry bounds all keys and tokens of its team together. It needs keys_store, and an admin's key; entries of the "
    "configuration are changed there (docs/keys.md)."
)


def options(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    for name, what, more, do in (
        ("list", "list the teams that have an entry or keys, a line each", "", _list),
        ("show", "print a team as JSON", "search", _show),
        ("set", "make a team's entry or change options of it, and print it as JSON", "search --model smollm2", _set),
        ("delete", "delete a team's entry; its keys stay, by the rules of the configuration", "search", _delete),
    ):
        action = subcommand(actions, name, what, f"dragoman teams {name} --key-file admin.key {more}".rstrip())
        admin_options(action, alone=name == "list")
        action.set_defaults(do=do)
        if name != "list":
            action.add_argument("name", metavar="NAME", help="the team's name")
        if name == "set":
            own = "again for more (default: as they are)"
            action.add_argument("--model", action="append", help=f"a model that its callers use at most; {own}")
            number, amount = "its own number of a limit", "its own amount of a budget"
            action.add_argument("--limit", action="append", metavar="RULE=N", help=f"{number}; {own}")
            action.add_argument("--budget", action="append", metavar="RULE=N", help=f"{amount}; {own}")
            action.add_argument(
                "--options",
                metavar="JSON",
                help="further options, as in gateway.yaml; null takes one away (default: none)",
            )
        if name == "delete":
            destructive.option(action)


def run(options: argparse.Namespace) -> int:
    with contextlib.closing(AdminApi(options)) as api:
        options.do(options, api)
    return 0


def _list(options: argparse.Namespace, api: AdminApi) -> None:
    lines = [("name", "keys", "state", "where", "models", "limits", "budgets")]
    for team in api.pages("/teams", "teams"):
        state = "disabled" if team["disabled"] else "valid"
        models = "all" if team["models"] is None else ",".join(team["models"]) or "none"
        numbers = (_numbers(team[option]) for option in ("limits", "budgets"))
        lines.append((team["name"], str(team["keys"]), state, team["where"], models, *numbers))
    print("\n".join(map(coloured, columns(lines, len(lines[0])))))


def _numbers(own: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={number}" for name, number in own.items()) or "-"


def _path(options: argparse.Namespace) -> str:
    return f"/teams/{quote(options.name, safe='')}"


def _show(options: argparse.Namespace, api: AdminApi) -> None:
    _print(api.call("GET", _path(options)))


def _set(options: argparse.Namespace, api: AdminApi) -> None:
    try:
        given = json.loads(options.options or "{}")
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise CommandError("--options must be a JSON object")
    before = api.call("GET", _path(options), absent=True)
    there = before is not None and before["where"] != "keys"
    named: dict[str, Any] = {"models": options.model} if options.model is not None else {}
    for option, rules in (("limits", options.limit), ("budgets", options.budget)):
        if rules is not None:
            own = dict(_rule(option, rule) for rule in rules)
            named[option] = (before[option] if there else {}) | own
    if twice := sorted(given.keys() & {*named, "name"}):
        raise CommandError(f"{twice[0]} is given twice: by --options and beside it")
    given |= named
    if not there:
        given = {option: value for option, value in given.items() if value is not None}
        _print(api.call("POST", "/teams", {"name": options.name, **given}))
    elif given:
        _print(api.call("PATCH", _path(options), given))
    else:
        raise CommandError("nothing to change: give --model, --limit, --budget or --options")


def _rule(option: str, given: str) -> tuple[str, int | str]:
    name, equals, number = given.rpartition("=")
    if not equals or (option == "limits" and not (number.isdecimal() and len(number) < 19)):
        raise CommandError(
            f"--{option[:-1]} must be RULE=N, such as team-{'tokens' if option == 'limits' else 'budget'}=100"
        )
    return name, int(number) if option == "limits" else number


def _delete(options: argparse.Namespace, api: AdminApi) -> None:
    destructive.confirm(f"the team {options.name} is bound by the rules of the configuration alone", options)
    api.call("DELETE", _path(options))
    print(f"{options.name} has no entry any more", file=sys.stderr)


def _print(team: Mapping[str, Any]) -> None:
    print(json.dumps(team, indent=2, ensure_ascii=False))
