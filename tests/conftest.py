"""Settings of the whole suite. Fixtures live beside the tests that use them."""

from __future__ import annotations

import functools
import gc
import os
import signal
import ssl
import tempfile
from collections import Counter
from collections.abc import Generator
from typing import Any

import certifi
import pytest
import yaml
from httpx._config import DEFAULT_TIMEOUT_CONFIG
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.support.slices"]

# No deadline, and no complaint of slow drawing: a shared machine may take its time over any one example. In CI the
# examples are the same in every run.
_SLOW = [HealthCheck.too_slow]
settings.register_profile("local", deadline=None, suppress_health_check=_SLOW, max_examples=25)
settings.register_profile("ci", settings.get_profile("local"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")
settings.register_profile("full", settings.get_profile("ci"), max_examples=100)  # make test-long

# A shell starts background jobs with SIGINT ignored, and children inherit that: tests that send it would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# httpx gives a request five seconds unless a test says how many. No test is about that.
for _part in ("connect", "read", "write", "pool"):
    setattr(DEFAULT_TIMEOUT_CONFIG, _part, 60.0)

_create_default_context = ssl.create_default_context


@functools.cache
def _with_authorities(file_name: str) -> ssl.SSLContext:
    return _create_default_context(cafile=file_name)


def _shared_context(purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH, **given: Any) -> ssl.SSLContext:
    """httpx makes one for each client, and reads all the web's authorities for it: 20 ms each time. They are those that
    the environment names, or certifi's where a client does not trust the environment: the gateway's own do not."""
    web = ({"cafile": name} for name in (os.environ.get("SSL_CERT_FILE"), certifi.where()) if name)
    return _with_authorities(given["cafile"]) if given in web else _create_default_context(purpose, **given)


ssl.create_default_context = _shared_context


# `yaml.safe_load` reads with what is written in Python, ten times as long as with libyaml. Its types
# do not say that both loaders read the same.
yaml.SafeLoader = yaml.CSafeLoader  # type: ignore[assignment, misc]


def pytest_configure(config: pytest.Config) -> None:
    """A program that a test kills cannot remove its temporary files, so all of them lie in one folder of this run.
    Folders of the tests themselves stay where pytest has them."""
    if not hasattr(config, "workerinput"):  # others inherit it
        tempfile.gettempdir()
        scratch = tempfile.TemporaryDirectory(prefix="tests-", ignore_cleanup_errors=True)
        os.environ["TMPDIR"] = scratch.name
        config.add_cleanup(scratch.cleanup)


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: tests wait for timers and processes of theirs, but each worker collects all tests
    first, for a quarter of a minute. With two cores, three workers took as long as five, and a fifth less of CPU."""
    return 1 + (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests are made, and all of them stay: the garbage collector would look through them again and again,
    a quarter of the time that it takes to make them. Once they are there it looks a last time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a failed test left open is found when its traceback goes, in the middle of another test: from then on that
    is told, and fails no test that is right."""
    report = yield
    if report.failed:
        item.config.addinivalue_line("filterwarnings", "default::pytest.PytestUnraisableExceptionWarning")
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many cases of each kind ran: a test of conformance or of transcripts is many. Which clients of other makers
    ran, their versions, and how many tests of each."""
    tests: Counter[str] = Counter()
    cases: Counter[str] = Counter()
    for report in terminalreporter.stats.get("passed", ()):
        folder = report.nodeid.removeprefix("tests/laws/").split("/")[0]
        tests[folder] += 1
        cases[folder] += sum(count for name, count in report.user_properties if name == "cases")
    told = [
        f"{folder}: {tests[folder]} tests" + (f", {cases[folder]} cases" if cases[folder] else "")
        for folder in ("conformance", "golden", "contract")
        if tests[folder]
    ]
    if told:
        terminalreporter.write_line("; ".join(told))
    clients = Counter(
        str(told)
        for report in terminalreporter.stats.get("passed", ())
        for name, told in report.user_properties
        if name == "client"
    )
    for client, count in sorted(clients.items()):
        terminalreporter.write_line(f"{client}: n = {count}")
