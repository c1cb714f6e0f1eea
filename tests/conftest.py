"""Settings of the whole suite. Fixtures live beside the tests that use them."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

# No deadline: a shared machine may take its time over any one example. In CI the examples are the same in every run.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

# A shell starts background jobs with SIGINT ignored, and children inherit that: tests that send it would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests that fail since branches were joined, mostly cases of the newest dialect in tests over all dialects. Mend and
# remove each line.
KNOWN_FAILURES = frozenset(Path(__file__).with_name("known_failures.txt").read_text().splitlines())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Failures of the list are shown as expected ones."""
    for item in items:
        if item.nodeid in KNOWN_FAILURES:
            item.add_marker(pytest.mark.xfail(reason="in known_failures.txt", strict=False))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many cases of each kind ran: a test of conformance or of transcripts is many."""
    tests: Counter[str] = Counter()
    cases: Counter[str] = Counter()
    for report in terminalreporter.stats.get("passed", ()):
        folder = report.nodeid.removeprefix("tests/").split("/")[0]
        tests[folder] += 1
        cases[folder] += sum(count for name, count in report.user_properties if name == "cases")
    told = [
        f"{folder}: {tests[folder]} tests" + (f", {cases[folder]} cases" if cases[folder] else "")
        for folder in ("conformance", "golden", "contract")
        if tests[folder]
    ]
    if told:
        terminalreporter.write_line("; ".join(told))
