"""The benchmark measures what it says: chunks and CPU are counted right, limits are judged, nothing is left running."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import msgspec
import pytest

from bench import guard, report
from bench.backend import Worker, chunked
from bench.load import Load, Stream
from bench.peers import page, pages, plot
from bench.peers.arrivals import at_rate
from bench.peers.dialects import DIALECTS
from bench.peers.figures import Lost
from bench.peers.load import LONGEST, Caller, Taken, body, request
from bench.peers.targets import TARGETS, Target, markdown, verdict
from bench.process import BenchError, cpu_seconds
from bench.replies import MARK, REPLIES, WANTED
from bench.routing import simulate
from bench.routing.__main__ import mean, parse, row
from bench.routing.run import KV_BLOCKS, Figures
from bench.routing.traces import trace
from bench.rows import BODY_SIZE, REFERENCE, ROWS, Kind, Row
from tests.repo.tree import ROOT
from tests.support.harness import soon

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="CPU of a process tree is read from /proc")


def result(*cells: tuple[str, str, Kind, float]) -> report.Report:
    found = [report.Cell(subject, row, kind, 100, [micros] * 3, 1.0) for subject, row, kind, micros in cells]
    return report.Report("now", {}, {}, {}, found)


def test_every_request_has_its_size_and_every_stream_its_mark() -> None:
    assert {len(row.body) for row in [*ROWS, *REFERENCE.values()] if "openai" in row.name} == {BODY_SIZE}
    for reply in REPLIES.values():
        assert reply.head.count(MARK) == 0
        assert reply.chunk.count(MARK) == (1 if reply.chunk else 0)


@pytest.mark.parametrize("size", [1, 2, 5, 6, 7, 100, 10000])
async def test_chunks_are_counted_wherever_blocks_are_cut(size: int) -> None:
    load = Load([b""])
    stream = Stream(load)
    stream.data_received(b"HTTP/1.1 200 OK\r\n\r\n")
    data = REPLIES[b"/v1/chat/completions"].chunk * 20
    for start in range(0, len(data), size):
        stream.data_received(data[start : start + size])
    assert load.count == 20
    assert not load.failure.done()


@pytest.mark.long
def test_simulated_time_plays_every_conversation_and_tells_policies_apart() -> None:
    conversations = trace(1, 5.0, 4.0)
    found = {
        name: simulate.in_simulated_time(simulate.play(name, 1, conversations, KV_BLOCKS))
        for name in ("prefix x2", "round_robin")
    }
    for figures in found.values():
        assert figures.requests == len(figures.first_ms) == sum(len(one.turns) for one in conversations)
        assert figures.first_ms[0] > 0
        assert min(figures.work, figures.busiest) >= 1
    assert found["prefix x2"].hits > found["round_robin"].hits
    line = simulate.row("prefix", [found["prefix x2"]] * 2)
    assert line.count("|") == simulate.HEADER.splitlines()[0].count("|")


def test_seeds_of_the_routing_bench_are_averaged(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = Figures("prefix", 2, 0.8, [1.0, 9.0], 1.0, 1.1), Figures("prefix", 1, 0.6, [4.0], 1.2, 1.3)
    assert row(mean([one, two])) == "| prefix | 3 | 0.700 | 4 | 9 | 1.10 | 1.20 |"
    assert parse(["--seeds", "1,2"]).seeds == (1, 2)
    with pytest.raises(SystemExit):
        parse(["--seeds", "1,b"])
    assert "expected numbers, like 1,2,3" in capsys.readouterr().err


async def test_an_error_ends_the_run() -> None:
    load = Load([b""])
    Stream(load).data_received(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
    with pytest.raises(Exception, match="503"):
        await load.wait(30)


def test_cpu_of_a_tree_holds_living_and_ended_children() -> None:
    burn = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    parent = (
        "import subprocess, sys\n"
        f"burn = {burn!r}\n"
        "subprocess.run([sys.executable, '-c', burn])\n"
        "child = subprocess.Popen([sys.executable, '-c', burn + '\\nprint(1, flush=True)\\ninput()'],"
        " stdin=subprocess.PIPE)\n"
        "child.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "1\n"
            used = cpu_seconds(process.pid)
        finally:
            process.kill()  # the child that lives ends with its input
        # One child has ended, one lives; a third of a second each, and what starting an interpreter costs.
        assert 0.55 <= used < 3


def test_limits_are_judged() -> None:
    rows = [
        Row("a", "plain", "/", b"", limit_us=100),
        Row("b", "stream", "/", b"", limit_ratio=2),
        Row("free", "plain", "/", b""),
    ]
    good: list[tuple[str, str, Kind, float]]
    good = [("nginx", "plain", "plain", 20.0), ("nginx", "stream", "stream", 10.0), ("dragoman", "a", "plain", 99.0)]
    assert report.verdict(result(*good, ("dragoman", "b", "stream", 19.0)), rows) == []
    assert len(report.verdict(result(*good, ("dragoman", "b", "stream", 21.0)), rows)) == 1
    assert len(report.verdict(result(("dragoman", "a", "plain", 101.0), ("dragoman", "b", "stream", 1.0)), rows)) == 2
    assert len(report.verdict(result(), rows)) == 2


@pytest.mark.long
def test_a_run_reports_and_leaves_nothing_behind(tmp_path: Path) -> None:
    out, run = tmp_path / "out.json", uuid.uuid4().hex
    command = [sys.executable, "-m", "bench", "--subjects", "bare", "--no-nginx", "--rounds", "2", "--json", str(out)]
    command += ["--seconds", "0.5", "--warm-up", "0.2", "--connections", "4", "--streams", "5"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, env={**os.environ, "RUN": run}
    )
    assert done.returncode == 0, done.stderr
    assert "| bare | plain | request |" in done.stdout
    written = msgspec.json.decode(out.read_bytes(), type=report.Report)
    assert [cell.kind for cell in written.cells] == ["plain", "stream"]
    assert all(cell.n > 0 and len(cell.micros) == 2 for cell in written.cells)
    assert str(ROOT) not in out.read_text()
    assert leftovers(run) == []


@pytest.mark.long
@pytest.mark.parametrize("words", ["bench --subjects bare --json OUT", "bench.routing --subjects prefix"])
async def test_a_told_end_leaves_nothing_behind(words: str, tmp_path: Path) -> None:
    run = uuid.uuid4().hex
    command = [sys.executable, "-m", *words.replace("OUT", str(tmp_path / "out.json")).split()]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stderr=asyncio.subprocess.DEVNULL, env={**os.environ, "RUN": run}
    )
    try:
        await soon(lambda: len(holding(run)) >= 2, 60)  # until it has started what it measures
    finally:
        process.terminate()
        status = await asyncio.wait_for(process.wait(), 60)
    assert status == 128 + 15
    assert leftovers(run) == []


def test_what_cannot_be_measured_is_said(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "--rows", "no such row"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "openai → vllm plain" in done.stderr


def test_a_missing_nginx_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench import subjects

    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(Exception, match=r"apt-get install nginx-light.*--no-nginx"):
        subjects.nginx_path()


def leftovers(run: str) -> list[str]:
    """What `holding` finds, after a moment to end in."""
    found = holding(run)
    for _ in range(300):
        if not found:
            break
        time.sleep(0.1)
        found = holding(run)
    return found


def holding(run: str) -> list[str]:
    """Command lines of processes that have the environment variable RUN=`run`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"RUN={run}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append((entry / "cmdline").read_text().replace("\0", " "))
    return found


class Speaker(asyncio.Transport):
    """A transport that keeps what is written, and tells of a reply's end."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.ended = asyncio.Event()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data
        if self.written.endswith(b"0\r\n\r\n"):
            self.ended.set()


class Answering(Speaker):
    """A transport whose peer answers each request after 20 ms."""

    def __init__(self, caller: Caller, reply: bytes) -> None:
        super().__init__()
        self._caller, self._reply = caller, reply

    def write(self, data: bytes | bytearray | memoryview) -> None:
        asyncio.get_running_loop().call_later(0.02, self._caller.data_received, self._reply)


def framed(*parts: bytes) -> bytes:
    return b"".join(chunked(part) for part in parts) + b"0\r\n\r\n"


@pytest.mark.parametrize("size", [1, 5, 6, 7, 64, 100_000])
async def test_the_comparison_counts_every_chunk_and_the_end(size: int) -> None:
    canned = REPLIES[b"/v1/chat/completions"]
    caller = Caller("subject")
    caller.connection_made(Speaker())
    reply = b"HTTP/1.1 200 OK\r\n\r\n" + framed(canned.head, *[canned.chunk] * 20, canned.tail)
    answer = caller.ask(b"", True)
    for start in range(0, len(reply), size):
        caller.data_received(reply[start : start + size])
    taken = await asyncio.wait_for(answer, 30)
    assert (taken.chunks, taken.ended, taken.refusal) == (20, True, "")


async def test_what_was_lost_is_counted_and_much_of_it_ends_the_run() -> None:
    lost = Lost()
    lost.count("subject", 100, [Taken(chunks=100, ended=True)] * 50)
    lost.count("subject", 100, [Taken(chunks=99, ended=False)])
    assert (lost.asked, lost.frames) == ({"subject": 5100}, {"subject": 2})
    with pytest.raises(BenchError, match=r"subject: .* were lost: HTTP/1\.1 500"):
        lost.count("subject", 100, [Taken(refusal="HTTP/1.1 500")] * 50)


def test_times_to_the_first_token_are_what_a_subject_adds() -> None:
    samples = {"first token": {"subject": [3.0, 4.0, 9.0], "backend": [1.0, 1.5, 2.0]}}
    found = page.Comparison("now", {}, {"subject": "1"}, {"subject": "all"}, 3, page.Figures(samples))
    assert page.samples(found, "first token", "subject") == [2.0, 2.5, 7.0]
    assert "| added ms to the first token, one client, p50 | 2.50 (2.00 to 7.00) |" in page.spread(found)


async def test_requests_arrive_at_the_rate_whatever_became_of_the_earlier_ones() -> None:
    """Some 40 streams in a fifth of a second, on two connections: one that waits for a connection counts its wait."""
    canned = REPLIES[b"/v1/chat/completions"]
    reply = b"HTTP/1.1 200 OK\r\n\r\n" + framed(canned.head, canned.chunk, canned.tail)
    callers = [Caller("subject"), Caller("subject")]
    for caller in callers:
        caller.connection_made(Answering(caller, reply))
    firsts = await at_rate(callers, b"", 200.0, 0.2)
    assert 20 < len(firsts) < 80
    assert max(firsts) > 0.02, "each answer takes 20 ms, and two connections answer 100 a second"


async def test_a_refused_arrival_ends_the_run() -> None:
    caller = Caller("subject")
    caller.connection_made(Answering(caller, b"HTTP/1.1 503 Service Unavailable\r\n\r\n"))
    with pytest.raises(BenchError, match="503"):
        await at_rate([caller], b"", 200.0, 0.2)


async def test_the_canned_worker_sends_as_many_chunks_as_were_asked_for() -> None:
    worker, transport = Worker(asyncio.get_running_loop()), Speaker()
    worker.connection_made(transport)
    worker.data_received(request("/v1/chat/completions", {}, body(1024, 3)))
    await asyncio.wait_for(transport.ended.wait(), 30)
    assert (transport.written.count(MARK), transport.written.count(b"[DONE]")) == (3, 1)
    assert len(body(1024, 3)) == len(body(1024)) == 1024


def compared(taken: dict[str, dict[str, list[float]]], lost: int = 0) -> page.Comparison:
    figures = page.Figures(taken, {"dragoman": 100}, {"dragoman": lost})
    return page.Comparison("now", {}, {"dragoman": "1", "nginx": "1"}, {"dragoman": "all", "nginx": ""}, 3, figures)


@pytest.mark.parametrize(
    ("target", "ours", "theirs", "said"),
    [
        (Target("chunk", 1.5, "nginx"), [12.0, 30.0, 14.0], [10.0, 20.0, 10.0], "yes"),
        (
            Target("chunk", 1.2, "nginx"),
            [12.0, 30.0, 14.0],
            [10.0, 20.0, 10.0],
            "no: off by 1.17 \N{MULTIPLICATION SIGN}",
        ),
        (Target("rate 50", 1, "nginx", more=True), [50.0] * 3, [100.0] * 3, "no: off by 2.00 \N{MULTIPLICATION SIGN}"),
        (Target("rate 50", 1, "nginx", more=True), [100.0] * 3, [50.0] * 3, "yes"),
        (Target("memory", 32, unit="KiB"), [31.0], [], "yes"),
        (Target("memory", 32, unit="KiB"), [48.0], [], "no: off by 1.50 \N{MULTIPLICATION SIGN}"),
    ],
)
def test_a_target_is_met_or_the_row_says_by_how_much_not(
    target: Target, ours: list[float], theirs: list[float], said: str
) -> None:
    """Ratios are those of the same round: a slow one slows both."""
    found = verdict(compared({target.figure: {"dragoman": ours, "nginx": theirs}}), target)
    assert found is not None
    assert found.said == said


def test_what_a_subject_adds_may_come_out_as_nothing_in_a_round() -> None:
    taken = {"first token": {"dragoman": [2.0, 2.0, 2.0], "nginx": [1.5, 0.9, 1.5], "backend": [1.0, 1.0, 1.0]}}
    found = verdict(compared(taken), Target("first token", 1.5, "nginx"))
    assert found is not None
    assert (found.reached, found.met) == (2.0, False)
    taken["first token"]["nginx"] = [0.9, 0.9, 1.5]
    found = verdict(compared(taken), Target("first token", 1.5, "nginx"))
    assert found is not None
    assert found.said == "no: nginx adds nothing that can be measured"


def test_a_lost_frame_is_a_missed_target_and_what_was_not_measured_is_none() -> None:
    assert "| frames lost or altered | 0 | no: 2 | 2.00 |  |  |" in markdown(compared({}, lost=2))
    assert "| frames lost or altered | 0 | yes |" in markdown(compared({}))
    assert {target.figure for target in TARGETS if verdict(compared({}), target) is not None} == {"frames"}


def test_every_dialect_is_asked_for_so_many_chunks_and_its_end_is_found() -> None:
    assert len(DIALECTS) == len([row for row in ROWS if row.kind == "stream"]) - 1
    for dialect in DIALECTS:
        assert [int(number) for number in WANTED.findall(dialect.body(510))] == [510]
        assert 0 < len(dialect.row.end) <= LONGEST


def test_the_pages_show_the_kept_comparison() -> None:
    found = pages.kept()
    for name, part in pages.PAGES.items():
        text = (ROOT / name).read_text()
        assert pages.filled(text, part(found)) == text, f"{name}: `make bench-peers-keep`"
    charts = plot.charts((ROOT / "docs" / "performance.md").read_text(), plot.PEERS)
    assert f"<!-- {plot.PEERS}: begin -->" == pages.BEGIN
    assert {chart.title for chart in charts} == {
        page.TITLES[name] for name in found.figures.taken if name in page.TITLES
    }
    assert (ROOT / "docs" / "images" / "peers.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_of_growth_is_drawn_with_its_own_numbers() -> None:
    charts = plot.charts((ROOT / "docs" / "performance.md").read_text(), plot.GROWTH)
    assert charts[2] == plot.Chart("CPU µs a request, by its KB", [("1", 220), ("100", 727), ("400", 3929)])
    assert {len(chart.values) for chart in charts} == {3, 4}
    assert (ROOT / "docs" / "images" / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_a_page_without_marks_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="the page lacks"):
        pages.filled("# Performance", "")
    with pytest.raises(ValueError, match="no table"):
        plot.charts("# Performance", plot.PEERS)
    assert plot.main([]) == 2
    assert "usage" in capsys.readouterr().err


# -- the guard --------------------------------------------------------------------------------------------------------


def ran(ours: float, nginx: float = 20.0, bare: float = 20.0) -> report.Report:
    """Three rounds; the machine is twice as slow in the second."""
    cells = []
    for kind in REFERENCE:
        base: Kind = kind
        cells += [cell("nginx", base, base, nginx), cell("bare", base, base, bare)]
    kinds = {row.name: row.kind for row in ROWS}
    cells += [cell(subject, row, kinds[row], ours) for subject, row in guard.WATCHED]
    return report.Report("now", {}, {}, {}, cells)


def cell(subject: str, row: str, kind: Kind, micros: float) -> report.Cell:
    return report.Cell(subject, row, kind, 3, [micros, 2 * micros, micros], 1.0)


@pytest.mark.parametrize(
    ("ours", "nginx", "bare", "fails"),
    [
        (100, 20, 20, False),
        (114, 20, 20, False),
        (116, 20, 20, True),
        (200, 40, 40, False),  # a slower machine
        (116, 20, 24, False),  # one reference alone had a bad minute
        (50, 20, 20, False),
    ],
)
def test_the_guard_fails_what_is_worse_than_accepted_by_both_references(
    ours: float, nginx: float, bare: float, fails: bool
) -> None:
    accepted = guard.ratios(ran(100))
    assert set(accepted["dragoman: openai → vllm plain"].values()) == {5.0}
    assert len(guard.worse(guard.ratios(ran(ours, nginx, bare)), accepted)) == (len(guard.WATCHED) if fails else 0)


def test_the_guard_fails_what_nobody_accepted() -> None:
    assert len(guard.worse(guard.ratios(ran(100)), {})) == len(guard.WATCHED)


def test_the_accepted_figures_are_those_of_what_is_watched() -> None:
    accepted = msgspec.json.decode(guard.ACCEPTED.read_bytes(), type=guard.Ratios)
    assert set(accepted) == {f"{subject}: {row}" for subject, row in guard.WATCHED}
    assert all(set(times) == set(guard.REFERENCES) for times in accepted.values())
