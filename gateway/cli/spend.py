"""`dragoman spend`: what was spent in a month, from the sums in the shared Redis."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import chain

import msgspec

from gateway import moments
from gateway.auth.key_mirror import Known
from gateway.cli import CommandError, destructive
from gateway.cli.configured import config_option, configuration, stored
from gateway.cli.progress import Progress, share
from gateway.cli.terminal import columns
from gateway.config import Config
from gateway.config.kinds import zone_of
from gateway.core.ports import RequestRecord
from gateway.observe.ledger import Ledger, Unavailable
from gateway.observe.spending import DIMENSIONS, Report, Wrong, make
from gateway.ratelimit import RebuiltBudgets, StoreDown
from gateway.redis import connect

_PATIENCE_S = 30.0
_DAY_S = 86_400
_MOST = 1 << 53
"""Tokens and billionths of a currency of one record: sums of a log hold in the 64 bits of Redis' integers."""
_record = msgspec.json.Decoder(RequestRecord, dec_hook=moments.read).decode
ABOUT = "The sums are in Redis, and kept with spend.daily. After Redis was lost, --rebuild makes them again from logs."


def options(parser: argparse.ArgumentParser) -> None:
    config_option(parser)
    parser.add_argument("--by", default="team,model", help=f"some of {', '.join(DIMENSIONS)} (default: team,model)")
    parser.add_argument("--month", metavar="YYYY-MM", help="the month (default: this one until today)")
    rebuild = (
        "print no report, but raise sums and budgets to those of the records in all logs; - is standard input "
        "(default: none)"
    )
    parser.add_argument("--rebuild", metavar="FILE", nargs="+", help=rebuild)
    destructive.option(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print CSV")
    form.add_argument("--json", action="store_true", help="print JSON, as /spend.json has it")


def run(options: argparse.Namespace) -> int:
    needed = ("redis",) if options.rebuild is None else ("redis", "end_users", "keys_file")
    config, _ = configuration(options.config, only=needed)
    if options.rebuild is not None:
        return _rebuild(config, options.rebuild, options)
    if not config.spend.daily:
        raise CommandError("no sums are kept: spend.daily is off")
    try:
        report = asyncio.run(_report(config, options.by, options.month))
    except Wrong as wrong:
        raise CommandError(str(wrong)) from None
    except Unavailable as error:
        raise CommandError(error, 1) from None
    except TimeoutError:
        raise CommandError(f"redis: no answer in {_PATIENCE_S:g} s", 1) from None
    if options.csv:
        print(report.csv(), end="")
    elif options.json:
        print(json.dumps(report.json(), indent=2))
    else:
        print("\n".join(columns(report.table(), len(report.by))))
        print(f"cost in {report.currency or 'no currency'}, {report.days[0]} to {report.days[-1]}")
    return 0


def _ledger(config: Config) -> Ledger:
    assert config.redis is not None  # the configuration was checked
    named = config.end_users is not None
    zone = zone_of(config.spend.time_zone)
    return Ledger(config.redis.namespace, zone, connect(config.redis), end_users=named)


def _rebuild(config: Config, logs: Sequence[str], options: argparse.Namespace) -> int:
    if len({os.path.realpath(log) for log in logs}) < len(logs):
        raise CommandError("a log is named twice: its records would count twice")
    if config.redis is None or (not config.spend.daily and config.limiter.store == "memory"):
        raise CommandError("Redis has no sums of this configuration: there is no redis, or spend.daily is off")
    destructive.confirm(
        f"sums of spending and budgets are raised to those of {', '.join(logs)}, and cannot be lowered again", options
    )
    try:
        count = asyncio.run(_raise(config, logs, stored(config)))
    except (Unavailable, StoreDown) as error:
        raise CommandError(error, 1) from None
    print(f"{count} records that a worker was picked for")
    return 0


async def _raise(config: Config, logs: Sequence[str], known: Known) -> int:
    """Raises the sums and budgets in Redis to those of the records in `logs`. Returns the number of records. Raises
    `Unavailable`, `StoreDown`."""
    await destructive.note(config, "rebuild", ", ".join(logs), None, ())
    budgets = None
    if config.limiter.store != "memory":
        keys = [(key.name, key.limits) for key in known.keys]
        budgets = RebuiltBudgets(config, keys, [(team.name, team) for team in known.teams])

    def records() -> Iterator[RequestRecord]:
        with Progress() as progress:
            for record in chain.from_iterable(_records(log, progress) for log in logs):
                if record.attempts:
                    if budgets is not None:
                        budgets.add(record)
                    yield record

    if config.spend.daily:
        ledger = _ledger(config)
        try:
            count = await ledger.rebuild(records())
        finally:
            await ledger.close()
    else:
        count = sum(1 for _ in records())
    if budgets is not None:
        await budgets.send()
    return count


def _records(file: str, progress: Progress) -> Iterator[RequestRecord]:
    """The request records in a log. Other lines are left out: a log holds events, and lines may be cut."""
    done, name = 0, "standard input" if file == "-" else file
    try:
        with sys.stdin.buffer if file == "-" else open(file, "rb") as lines:
            whole = os.fstat(lines.fileno()).st_size
            for line in lines:
                done += len(line)
                progress.show(f"{name}: {share(done, whole) if whole else f'{done:,} bytes'}")
                with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                    record = _record(line)
                    if record.event == "request" and _may_be(record):
                        yield record
    except OSError as error:
        raise CommandError(error) from None


def _may_be(record: RequestRecord) -> bool:
    """Whether a gateway may have written such figures: a line may have been changed on its way."""
    usage = record.usage
    figures = [record.cost or 0, *((usage.input or 0, usage.output or 0, usage.cached or 0) if usage else ())]
    return 0 < record.time < time.time() + _DAY_S and all(0 <= figure < _MOST for figure in figures)


async def _report(config: Config, by: str, month: str | None) -> Report:
    zone, ledger = zone_of(config.spend.time_zone), _ledger(config)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await make(ledger, by, month, config.spend.currency or "", zone)
    finally:
        await ledger.close()
