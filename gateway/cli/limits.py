"""`dragoman limits show` and `reset`: what a caller has used of its limits, in the shared Redis."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from ipaddress import ip_address

from gateway.auth import ANONYMOUS
from gateway.cli import CommandError, destructive, subcommand
from gateway.cli.configured import config_option, configuration, with_stored, with_team
from gateway.cli.terminal import columns
from gateway.config import Config
from gateway.core.end_users import end_user
from gateway.core.errors import GatewayError
from gateway.ratelimit import Subject, limit_names, table, too_late, unseen

ABOUT = (
    "It reads the counters in Redis, which are those of all gateways together. Without Redis a gateway counts in "
    "its own memory: its /metrics has them."
)


def options(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    for name, what in (
        ("show", "print every limit: used, left, and when it resets"),
        ("reset", "set to zero what `show` shows, but for budgets"),
    ):
        action = subcommand(actions, name, what, f"dragoman limits {name} --key team-a")
        config_option(action)
        action.add_argument("--key", help="the key's name (default: a caller without a key)")
        action.add_argument("--team", help="the team (default: the key's)")
        action.add_argument("--model", help="the model (default: all)")
        action.add_argument("--address", type=_address, help="a client's IP address (default: none)")
        action.add_argument("--end-user", help="an end user, as clients name it (default: none)")
        if name == "reset":
            what = "a limit, or a budget, to reset; again for more (default: all limits, and no budget)"
            action.add_argument("--limit", metavar="NAME", action="append", help=what)
            destructive.option(action)
        action.set_defaults(forget=name == "reset")


def run(options: argparse.Namespace) -> int:
    config = with_stored(configuration(options.config, only=("redis", "end_users", "keys_file"))[0], options.key)
    _check(config, options)
    team = options.team or (config.keys[options.key].team if options.key in config.keys else None)
    config = with_team(config, team)
    models = [config.resolve(options.model)] if options.model is not None else [None, *config.models]
    named = end_user(options.end_user or "", config.end_users.secret if config.end_users is not None else None)
    subjects = [Subject(options.key, team, model, options.address, named) for model in models]
    try:
        rows, took_s = asyncio.run(_reset(config, subjects, options) if options.forget else table(config, subjects))
    except GatewayError as error:
        raise CommandError(error.message, 1) from None
    print("\n".join(columns(rows, text=2)))
    assert config.redis is not None  # it was checked
    for line in (*unseen(config, subjects[0]), *too_late(config.redis, took_s)):
        print(f"dragoman: {line}", file=sys.stderr)
    return 0


async def _reset(
    config: Config, subjects: Sequence[Subject], options: argparse.Namespace
) -> tuple[list[tuple[str, ...]], float]:
    """As `table`; asks, and resets the limits that are named before. Raises CommandError, GatewayError."""
    known = limit_names(config, subjects)
    chosen = options.limit or [name for name, budget in known.items() if not budget]
    if wrong := next((name for name in chosen if name not in known), None):
        raise CommandError(f"no limit {wrong} applies: {', '.join(known) or 'none does'}")
    if chosen:
        before, _ = await table(config, subjects, chosen)
        print("\n".join(columns(before, text=2)), file=sys.stderr)
        destructive.confirm("these counters are set to zero", options)
        whom = [
            f"{one} {getattr(options, one)}" for one in ("key", "team", "model", "address") if getattr(options, one)
        ]
        whom += ["an end user"] if options.end_user else []
        await destructive.note(config, "reset", ", ".join(whom) or "all", subjects[0].team, tuple(chosen))
    found = await table(config, subjects, chosen, forget=True)
    if unchanged := [name for name, budget in known.items() if budget and name not in chosen]:
        print(f"dragoman: budgets stay as they are: {', '.join(unchanged)}; --limit NAME resets one", file=sys.stderr)
    return found


def _check(config: Config, options: argparse.Namespace) -> None:
    """Raises CommandError if there is nothing to show."""
    if config.redis is None or config.limiter.store == "memory":
        raise CommandError(
            "without redis every gateway counts in its own memory; "
            "see its /metrics, where `metrics.top_keys` adds figures by key"
        )
    # A token's subject is known to its issuer only: any name may be right.
    token = config.jwt is not None and (options.key or "").startswith("jwt:")
    known = config.keys if config.auth == "keys" else (ANONYMOUS.key,)
    if options.key is not None and options.key not in known and not token:
        raise CommandError(f"there is no key {options.key}")
    if options.model is not None and config.resolve(options.model) is None:
        raise CommandError(f"there is no model {options.model}")


def _address(given: str) -> str:
    try:
        return str(ip_address(given))
    except ValueError:
        raise argparse.ArgumentTypeError("must be an IP address") from None
