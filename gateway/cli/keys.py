"""`dragoman keys`: keys for the configuration (`new`), and keys of the store by the admin API of a running gateway."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from gateway.auth import TEAM_OPTIONS, new_key, new_secret
from gateway.cli import COMMANDS, CommandError, destructive, subcommand
from gateway.cli.admin_api import AdminApi, admin_options
from gateway.cli.colours import coloured
from gateway.cli.configured import read
from gateway.cli.progress import Progress
from gateway.cli.terminal import columns

ABOUT = (
    "`new` makes a key for the configuration, and needs no gateway. The others change keys while gateways run, by "
    "the admin API: they need keys_store, and an admin's key (docs/keys.md)."
)


def options(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    what = "print a new key on standard error, once, and its entry for a keys file on standard output"
    new = subcommand(actions, "new", what, COMMANDS["keys"][1])
    new.add_argument("--name", required=True, help="the entry's name")
    new.add_argument("--team", help="the team that the key belongs to (default: none)")
    new.add_argument("--key-file", metavar="FILE", help="a new file for the key (default: standard error)")
    new.set_defaults(do=None)
    for name, what, more, do in (
        ("create", "make a key in the store, and print it on standard output, once", "app --team blue", _create),
        ("list", "list the keys of the configuration and of the store, a line each", "--team blue", _list),
        ("show", "print a key of the store as JSON, without its secret", "app", _show),
        (
            "update",
            "change options of a key, and print it as JSON",
            "app --model m --options '{\"limits\": null}'",
            _update,
        ),
        ("rotate", "give a key a new secret, and print that on standard output, once", "app --valid 3600", _rotate),
        ("revoke", "refuse a key for ever", "app", _revoke),
        (
            "export",
            "print teams and keys of the store with their hashes, a line of JSON each",
            "> keys.jsonl",
            _export,
        ),
        ("import", "take in teams and keys as they were exported", "keys.jsonl", _import),
        ("refill", "write keys back that the store lost and the gateway still knows", "", _refill),
    ):
        action = subcommand(actions, name, what, f"dragoman keys {name} --key-file admin.key {more}")
        admin_options(action, alone=name in ("list", "export", "refill"))
        action.set_defaults(do=do)
        if name == "import":
            action.add_argument("file", metavar="FILE", help="what `export` printed; - for standard input")
        elif name not in ("list", "export", "refill"):
            action.add_argument("name", metavar="NAME", help="the key's name")
        if name in ("create", "update"):
            team, all_, never = ("none", "all", "never") if name == "create" else ("as it is",) * 3
            action.add_argument("--team", help=f"the team that the key belongs to (default: {team})")
            action.add_argument(
                "--model", action="append", help=f"a model it may use; again for more (default: {all_})"
            )
            action.add_argument(
                "--dialect", action="append", help=f"an API it may speak; again for more (default: {all_})"
            )
            action.add_argument("--expires", metavar="DATE", help=f"from then on it is refused (default: {never})")
            more = "further options, as in gateway.yaml" + ("; null takes one away" if name == "update" else "")
            action.add_argument("--options", metavar="JSON", help=f"{more} (default: none)")
        if name in ("rotate", "revoke", "import"):
            destructive.option(action)
        if name == "list":
            action.add_argument("--team", help="only keys of this team (default: all)")
            action.add_argument("--revoked", action="store_true", help="revoked keys, too")
        if name == "rotate":
            action.add_argument(
                "--valid", metavar="SECONDS", type=float, default=86_400, help="of the old secret (default: a day)"
            )


def run(options: argparse.Namespace) -> int:
    if options.do is None:
        _new(options)
    else:
        with contextlib.closing(AdminApi(options)) as api:
            options.do(options, api)
    return 0


def _new(options: argparse.Namespace) -> None:
    try:
        key, entry = new_key(options.name, options.team)
    except ValueError as error:
        raise CommandError(error) from None
    if options.key_file is not None:
        try:
            with open(os.open(options.key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(key + "\n")
        except OSError as error:
            raise CommandError(f"{options.key_file} cannot be made: {error.strerror}") from None
    else:
        # To standard error, so that `dragoman keys new >> keys.yaml` writes the entry alone.
        where = "a keys file or, indented, for `keys:` in gateway.yaml"
        print(f"The key, shown this once:\n\n  {key}\n\nStandard output has its entry, for {where}.\n", file=sys.stderr)
    print(entry.rstrip("\n"))


def _path(options: argparse.Namespace, action: str = "") -> str:
    return f"/keys/{quote(options.name, safe='')}{action}"


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """The options of a key that the command line names."""
    try:
        more = json.loads(options.options or "{}")
    except ValueError:
        more = None
    if not isinstance(more, dict):
        raise CommandError("--options must be a JSON object")
    given = {"team": options.team, "models": options.model, "dialects": options.dialect, "expires": options.expires}
    given = {name: value for name, value in given.items() if value is not None}
    if twice := sorted(more.keys() & {*given, "name"}):
        raise CommandError(f"{twice[0]} is given twice: by --options and beside it")
    return more | given


def _create(options: argparse.Namespace, api: AdminApi) -> None:
    secret, id_, hash_ = new_secret()
    given = _given(options)
    own = "hash" in given  # the caller has the secret
    made = {} if own else {"hash": hash_, "id": id_}
    if "id" in given and not own:
        raise CommandError("--options: id comes with the hash of a secret of your own")
    api.call("POST", "/keys", {**given, "name": options.name, **made}, once=id_)
    print(f"{options.name} is made, with the secret of the hash" if own else secret, file=sys.stderr if own else None)


def _update(options: argparse.Namespace, api: AdminApi) -> None:
    given = _given(options)
    if not given:
        raise CommandError("nothing to change: give --team, --model, --dialect, --expires or --options")
    print(json.dumps(api.call("PATCH", _path(options), given), indent=2, ensure_ascii=False))


def _list(options: argparse.Namespace, api: AdminApi) -> None:
    query = {"team": options.team} if options.team is not None else {}
    query |= {"revoked": "true"} if options.revoked else {}
    lines = [("name", "team", "id", "state", "where", "used", "changed", "by")]
    for key in api.pages("/keys", "keys", **query):
        changed, by = (key["changed"] or "-")[:19], key["changed_by"] or "-"
        used = (key.get("last_used") or "-")[:16]  # a gateway of an earlier version has none
        lines.append((key["name"], key["team"] or "-", key["id"] or "-", _state(key), key["where"], used, changed, by))
    print("\n".join(map(coloured, columns(lines, len(lines[0])))))


def _state(key: Mapping[str, Any]) -> str:
    if key["revoked"]:
        return "revoked"
    if key["disabled"]:
        return "disabled"
    if key["expires"] and datetime.fromisoformat(key["expires"]) < datetime.now(UTC):
        return "expired"
    return "rotating" if key["old"] else "valid"


def _show(options: argparse.Namespace, api: AdminApi) -> None:
    print(json.dumps(api.call("GET", _path(options)), indent=2, ensure_ascii=False))


def _rotate(options: argparse.Namespace, api: AdminApi) -> None:
    if not options.valid:
        destructive.confirm(f"the old secret of the key {options.name} is refused at once", options)
    secret, id_, hash_ = new_secret()
    given = {"valid_s": options.valid, "hash": hash_, "id": id_}
    api.call("POST", _path(options, "/rotate"), given)
    print(secret)


def _revoke(options: argparse.Namespace, api: AdminApi) -> None:
    destructive.confirm(f"the key {options.name} is refused for ever", options)
    api.call("POST", _path(options, "/revoke"))
    print(f"{options.name} is revoked", file=sys.stderr)


def _export(options: argparse.Namespace, api: AdminApi) -> None:
    for team in api.pages("/teams", "teams"):
        if team["where"] == "store":
            own = {option: team[option] for option in TEAM_OPTIONS if team[option] not in (None, False, {})}
            print(json.dumps({"kind": "team", "name": team["name"], **own}, ensure_ascii=False))
    for key in api.pages("/export", "keys"):
        print(json.dumps(key, ensure_ascii=False))


def _refill(options: argparse.Namespace, api: AdminApi) -> None:
    print(f"{api.call('POST', '/refill')['keys']} keys written back", file=sys.stderr)


def _read(number: int, line: bytes) -> dict[str, Any]:
    try:
        key = json.loads(line)
    except ValueError:
        key = None
    if not isinstance(key, dict) or not isinstance(key.get("name"), str):
        raise CommandError(f"line {number} is not a key or a team as `export` prints it")
    return key


def _take_team(number: int, team: dict[str, Any], api: AdminApi) -> None:
    """An entry that the team has already stays."""
    there = api.call("GET", f"/teams/{quote(team['name'], safe='')}", absent=True)
    if there is not None and there["where"] != "keys":
        print(f"the team {team['name']} has an entry, which stays", file=sys.stderr)
        return
    try:
        api.call("POST", "/teams", {option: value for option, value in team.items() if option != "kind"})
    except CommandError as error:
        raise CommandError(f"line {number}: {error}; no key was taken in", 1) from None
    print(f"the team {team['name']} was taken in", file=sys.stderr)


def _import(options: argparse.Namespace, api: AdminApi) -> None:
    """Goes on after a key that is refused, and ends with status 1 then. A team that is refused ends it before any key:
    the keys of a team without its entry could do more than they may."""
    refused = count = 0
    lines = [(number, _read(number, line)) for number, line in enumerate(read(options.file).splitlines(), 1)]
    teams = [(number, line) for number, line in lines if line.get("kind") == "team"]
    keys = [(number, line) for number, line in lines if line.get("kind") != "team"]
    if revoked := sum(key.get("revoked") is not None for _, key in keys):
        destructive.confirm(f"{revoked} of {len(keys)} keys are refused for ever", options)
    for number, team in teams:
        _take_team(number, team, api)
    with Progress() as progress:
        for number, key in keys:
            try:
                api.call("PUT", f"/keys/{quote(key['name'], safe='')}", key)
                count += 1
            except CommandError as error:
                refused += 1
                progress.clear()
                print(f"dragoman: line {number}: {error}", file=sys.stderr)
            progress.show(f"{count + refused:,} of {len(keys):,} keys")
    print(f"{count} keys taken in", file=sys.stderr)
    if refused:
        raise CommandError(f"{refused} keys were refused", 1)
