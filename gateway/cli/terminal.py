"""Two states of the gateway -> the lines that `dragoman status` prints. Plain text; the colours are the caller's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.features.console.state import Histogram, ModelState, State, WorkerState

_MOST_ROWS = 40
_NO_VALUE = "-"


def view(before: State | None, state: State) -> list[str]:
    """The lines for `state`; rates count from `before`, and are missing without it."""
    lines = [_headline(state), ""]
    seconds = state.time - before.time if before is not None and state.uptime_s >= before.uptime_s else 0.0
    old = {one.name: one for one in before.models} if before is not None and seconds > 0 else {}
    lines += _table(
        ("model", "ready", "in flight", "waiting", "req/s", "failed/s", "out tok/s", "in tok/s", "first token"),
        [_model_row(old.get(one.name), one, seconds) for one in state.models],
    )
    workers = [
        (one.name, worker.address, state_of(worker), str(worker.in_flight), _number(worker.max_in_flight))
        for one in state.models
        for worker in one.workers
    ]
    lines += ["", *_table(("model", "worker", "state", "in flight", "at most"), workers, text=3)]
    lost = [
        (one.name, what.replace("_", " "), reason, str(count))
        for one in state.models
        for what, counts in one.lost_worker.items()
        for reason, count in counts.items()
    ]
    if lost:
        lines += ["", *_table(("model", "lost worker", "reason", "requests"), lost, text=3)]
    if [team.name for team in state.teams] not in ([], ["none"]):
        old_teams = {one.name: one for one in before.teams} if before is not None and seconds > 0 else {}
        rows = []
        for team in state.teams:
            then = old_teams.get(team.name)
            tokens = team.input_tokens + team.output_tokens
            since = tokens - (then.input_tokens + then.output_tokens) if then is not None else None
            rows.append((team.name, str(team.requests), str(tokens), _rate(since, seconds)))
        lines += ["", *_table(("team", "requests", "tokens", "tok/s"), rows)]
    refused = {**(state.limits.refused if state.limits is not None else {})}
    if refused:
        lines += ["", *_table(("limit", "refused"), [(name, str(count)) for name, count in sorted(refused.items())])]
    return [_printable(line) for line in lines]


def state_of(worker: WorkerState) -> str:
    """The condition of a worker, why it has that, and the names that it serves."""
    text = worker.condition
    if worker.reason is not None:
        before = "failed last: " if text == "ready" else ""
        text += f"{', ' if before else ': '}{before}{worker.reason}"
        text += f" ({worker.meaning})" if worker.meaning is not None else ""
    if worker.serves:
        return f"{text} (serves {', '.join(worker.serves)})"
    return text + (f" (serves {worker.served_as})" if worker.served_as is not None else "")


def _headline(state: State) -> str:
    condition = "ready" if state.ready else "no worker is ready"
    if state.starting or state.draining:
        condition = "draining" if state.draining else "starting"
    if state.unread:
        condition += f" (not read yet: {', '.join(state.unread)})"
    running = sum(state.running.values())
    limits = "no limits"
    if state.limits is not None:
        limits = f"limits {state.limits.mode} on {state.limits.replicas} gateway(s)"
    return f"dragoman {state.version}: {condition}, up {duration(state.uptime_s)}, {running} under way, {limits}"


def _model_row(before: ModelState | None, model: ModelState, seconds: float) -> tuple[str, ...]:
    def since(count: Callable[[ModelState], int]) -> str:
        return _rate(count(model) - count(before) if before is not None else None, seconds)

    ready = sum(worker.condition == "ready" for worker in model.workers)
    median = quantile(before.first_output if before is not None else None, model.first_output, 0.5)
    return (
        model.name,
        f"{ready}/{len(model.workers)}",
        str(sum(worker.in_flight for worker in model.workers)),
        str(model.waiting),
        since(lambda one: sum(one.requests.values())),
        since(lambda one: one.requests.get("failed", 0)),
        since(lambda one: one.output_tokens),
        since(lambda one: one.input_tokens),
        f"{median:.2f} s" if median is not None else _NO_VALUE,
    )


def quantile(before: Histogram | None, now: Histogram | None, share: float) -> float | None:
    """The quantile of what was added since `before`, by straight lines within a bucket, in seconds; None if nothing
    was. Beyond the last bound it is that bound."""
    if now is None:
        return None
    counts = list(now.counts)
    if before is not None and before.bounds_s == now.bounds_s:
        counts = [after - earlier for earlier, after in zip(before.counts, counts, strict=True)]
    wanted, counted = share * sum(counts), 0
    if wanted <= 0:
        return None
    edges = [0.0, *now.bounds_s, now.bounds_s[-1]]
    for (low, high), count in zip(pairwise(edges), counts, strict=True):
        if counted + count >= wanted:
            return low + (high - low) * (wanted - counted) / count
        counted += count
    return edges[-1]


def duration(seconds: float) -> str:
    """The two largest units: 3d4h, 5h6m, 7m8s, 9s."""
    whole = int(seconds)
    units = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "m"), (whole % 60, "s")]
    first = next((index for index, (count, _) in enumerate(units) if count), len(units) - 1)
    return "".join(f"{count}{unit}" for count, unit in units[first : first + 2])


def _rate(count: int | None, seconds: float) -> str:
    return f"{max(0, count) / seconds:.1f}" if count is not None and seconds > 0 else _NO_VALUE


def _number(value: int | None) -> str:
    return str(value) if value is not None else _NO_VALUE


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], text: int = 1) -> list[str]:
    lines = columns([head, *rows[:_MOST_ROWS]], text)
    return lines + ([f"and {len(rows) - _MOST_ROWS} more"] if len(rows) > _MOST_ROWS else [])


def columns(rows: Sequence[tuple[str, ...]], text: int) -> list[str]:
    """Lines for a terminal. The first `text` columns are text and begin at the left, the others are numbers."""
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:{'<' if at < text else '>'}{wide[at]}}" for at, cell in enumerate(row)).rstrip()
        for row in rows
    ]


def _printable(line: str) -> str:
    """Names may come from tokens: none of them moves the cursor."""
    return "".join(char if char.isprintable() else "?" for char in line)
