"""`dragoman import litellm`: gateway.yaml from LiteLLM's config.yaml and the keys of its database.

litellm.py              its configuration
litellm_deployments.py  the entries of its model_list, as models and workers
litellm_credentials.py  its secrets and variables
litellm_budgets.py      its amounts and periods
litellm_options.py      why an option has no line in gateway.yaml
litellm_keys.py         the rows of its tables of keys, teams and budgets
drafts.py               gateway.yaml as it is being written, of whatever program
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable
from typing import Any

from gateway import moments
from gateway.cli import COMMANDS, CommandError, subcommand
from gateway.cli.configured import read
from gateway.cli.importing.drafts import Draft, read_foreign
from gateway.cli.importing.litellm import LiteLLM
from gateway.cli.importing.litellm_budgets import nano
from gateway.cli.importing.litellm_deployments import OF_MODELS
from gateway.cli.importing.litellm_keys import Spent, models_named, rows, take_in
from gateway.config import Key
from gateway.config.environment import variable
from gateway.config.faults import masked
from gateway.config.source import MOST_BYTES

_BY = "import litellm"
"""The maker of the keys, in the audit record of the store."""
ABOUT = "It reads LiteLLM's. Comments in the file name each option without a counterpart (docs/from-litellm.md)."


def options(parser: argparse.ArgumentParser) -> None:
    sources = parser.add_subparsers(required=True, metavar="SOURCE")
    what = "write gateway.yaml from LiteLLM's config.yaml, with a comment for each option that has no counterpart"
    source = subcommand(sources, "litellm", what, COMMANDS["import"][1])
    source.add_argument("file", metavar="FILE", help="LiteLLM's config.yaml, or - for standard input")
    source.add_argument(
        "--keys",
        metavar="FILE",
        action="append",
        default=[],
        help="rows of its tables of keys, teams and budgets, or what /key/list and /team/list answer, as JSON; again "
        "for more",
    )
    source.add_argument(
        "--stored-keys",
        metavar="FILE",
        help="a new file for keys and teams, which `dragoman keys import` takes into the store: they are changed while "
        "gateways run (default: they stand in gateway.yaml)",
    )
    source.add_argument(
        "--models",
        metavar="FILE",
        help="what /model/info answers, for models that were made in LiteLLM's interface (default: none)",
    )
    source.add_argument(
        "--prices",
        metavar="FILE",
        help="LiteLLM's model_prices_and_context_window.json, for models without a price of their own (default: none)",
    )
    source.add_argument(
        "--spent",
        metavar="FILE",
        help="a new file with what keys and teams have spent, with which `dragoman spend --rebuild` has their budgets "
        "begin (default: they begin at 0)",
    )
    source.add_argument("--out", metavar="FILE", help="a new file for gateway.yaml (default: standard output)")


def run(options: argparse.Namespace) -> int:
    """The exit status: 0 if all has a counterpart, 1 if the file has comments on what has none."""
    config = read_foreign(read(options.file), options.file)
    if not isinstance(config, dict):
        raise CommandError(f"{options.file} is not a mapping of options")
    found = [row for name in options.keys for row in rows(read(name), name)]
    draft = Draft()
    prices = {} if options.prices is None else read_foreign(read(options.prices), options.prices)
    if not isinstance(prices, dict):
        raise CommandError(f"{options.prices} is not LiteLLM's list of prices, which is a mapping")
    if options.models is not None:
        listed = config.get("model_list")
        made = _made(draft, options.models)
        config = {**config, "model_list": [*listed, *made] if isinstance(listed, list) else made}
    imported = LiteLLM(draft, config, variable, models_named(found), prices)
    keys, teams, spent = take_in(draft, imported, found)
    stored = None
    if options.stored_keys is None:
        draft.settle()
    else:
        stored = _store(draft, options.stored_keys, int(time.time()))
    records = _spent(draft, spent, options.spent)
    text = "".join(f"{line}\n" for line in draft.lines())
    if len(text.encode()) > MOST_BYTES:
        draft.todo["move the entries below `keys` to a file that `keys_file` names: gateway.yaml is too large"] = None
    if stored is not None:
        _write(stored, options.stored_keys)
    if options.spent is not None:
        _write(records, options.spent)
    _write(text, options.out)
    for one in draft.todo:
        print(f"dragoman: to do: {masked(one)}", file=sys.stderr)
    if not keys:
        print("dragoman: no keys: the gateway asks for none, on loopback alone; give --keys", file=sys.stderr)
    print(
        f"dragoman: {options.file}: {len(draft.values['models'])} models, {keys} keys and {teams} teams: "
        f"{draft.mapped} options mapped, {draft.commented} commented",
        file=sys.stderr,
    )
    return 1 if draft.commented else 0


def _made(draft: Draft, name: str) -> list[dict[str, Any]]:
    """The entries of models in LiteLLM's database. Most of an entry's facts about its model are not options."""
    answer = read_foreign(read(name), name)
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, list):
        raise CommandError(f"{name} is not what /model/info answers")
    found = []
    for entry in data:
        params, info = (entry.get(one) if isinstance(entry, dict) else None for one in ("litellm_params", "model_info"))
        if isinstance(params, dict) and isinstance(info, dict) and info.get("db_model"):
            known = {option: value for option, value in info.items() if option in OF_MODELS}
            found.append({"model_name": entry.get("model_name"), "litellm_params": params, "model_info": known})
            if not params.get("api_key"):
                model = entry.get("model_name")
                draft.todo[f"give the model {model} its key, if it needs one: LiteLLM shows none"] = None
    return found


def _store(draft: Draft, name: str, now: int) -> str:
    """Settles the draft, and takes keys and teams out of it: lines for `dragoman keys import`. Raises CommandError."""
    if "redis" not in draft.values:
        raise CommandError(
            "--stored-keys needs the store of keys, which is Redis, and LiteLLM's configuration names none"
        )
    made = {"created": now, "changed": now, "created_by": _BY, "changed_by": _BY}
    draft.values |= {"keys_store": "redis", "admins_file": "admins.yaml", "metrics": {"listen": "127.0.0.1:9090"}}
    draft.settle()  # with the store: later keys may be of teams that have none
    keys, teams = draft.values.pop("keys", {}), draft.values.pop("teams", {})
    new = "dragoman keys new --name YOURS --key-file admin.key >> admins.yaml"
    draft.todo[f"make an admin's key beside gateway.yaml: {new}"] = None
    taken = f"dragoman keys import --key-file admin.key {name}"
    draft.todo[f"take the keys in once the gateway runs, and before clients call: {taken}"] = None
    lines = [json.dumps({"kind": "team", "name": name, **entry}) for name, entry in teams.items()]
    for key, entry in keys.items():
        ends = Key.model_validate(entry).expires  # in the file a date may stand for a time
        times = made if ends is None else {"expires": ends.isoformat(), **made}
        lines.append(json.dumps({"name": key, **entry, "seal": entry["hash"], **times}))
    return "".join(f"{line}\n" for line in lines)


def _spent(draft: Draft, spent: Iterable[Spent], name: str | None) -> str:
    """Records by which budgets begin with what LiteLLM has counted since it last reset them. Raises CommandError."""
    records = []
    for one in spent:
        if cost := nano(one.amount):
            record = {"time": moments.iso(time.time()), "event": "request", "id": _BY, "attempts": 1, "cost": cost}
            records.append({**record, "key": one.key} | ({} if one.team is None else {"team": one.team}))
    if name is not None and "redis" not in draft.values:
        raise CommandError("--spent needs budgets in Redis, and LiteLLM's configuration names none")
    if name is not None:
        draft.todo[f"after the keys, and before clients call: dragoman spend --rebuild {name}"] = None
    elif records and "redis" not in draft.values:
        draft.todo["budgets begin at 0 with each gateway: add the section redis, or LiteLLM's, and import again"] = None
    elif records:
        draft.todo["budgets begin at 0, whatever LiteLLM has counted: give --spent to take that in"] = None
    if records and any(budget.get("scope") == [] for budget in draft.values.get("budgets", ())):
        draft.todo["look at the budget of all: LiteLLM's own sum of it is in no row, so it begins otherwise"] = None
    return "".join(f"{json.dumps(record)}\n" for record in records)


def _write(text: str, name: str | None) -> None:
    """Raises CommandError if the file is there already, or cannot be made."""
    if name is None:
        print(text, end="")
        return
    try:
        with open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise CommandError(f"{name} cannot be made: {error.strerror}") from None
