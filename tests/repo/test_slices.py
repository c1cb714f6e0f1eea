"""What `make check` and the slices of long proofs draw."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import PurePosixPath

from gateway.dialects import REGISTRY
from scripts.changed import proofs_of
from tests.repo.tree import ROOT
from tests.support.slices import APART, draw, names, sample


def test_a_slice_is_one_case_in_so_many_and_the_same_each_time() -> None:
    cases = [f"tests/test_law.py::test[{number}]" for number in range(41)]
    assert len(draw(cases, 8)) == 6
    assert draw(cases, 8) == draw(cases, 8)
    assert set(draw(cases, 8)) < set(cases)


def test_a_slice_has_each_dialect_that_its_cases_name() -> None:
    cases = [f"tests/test_law.py::test[{name} {way}]" for name in REGISTRY for way in ("whole", "streamed")]
    assert names(draw(cases, 100)) == set(REGISTRY)
    assert len(draw(cases, 100)) == len(REGISTRY)


def test_a_law_of_one_case_is_in_every_slice() -> None:
    assert draw(["tests/test_law.py::test"], 8) == ["tests/test_law.py::test"]


def test_a_sample_has_each_law_and_each_dialect_that_a_law_names() -> None:
    some = [f"tests/test_some.py::test[{number}]" for number in range(40)]
    named = [f"tests/test_named.py::test[{name}-{way}]" for name in REGISTRY for way in ("whole", "streamed")]
    kept = sample([*some, *named, "tests/test_one.py::test"], 4)
    assert len(kept & {*some}) == 10
    assert names(kept & {*named}) == set(REGISTRY)
    assert "tests/test_one.py::test" in kept


def test_cases_of_other_targets_are_not_sampled() -> None:
    (left_out,) = re.findall(r"-m '(.*?)'", (ROOT / "pyproject.toml").read_text())
    assert set(left_out.replace("not ", "").split(" and ")) == APART


def test_a_slice_of_the_long_proof_leaves_out_laws_that_make_test_samples() -> None:
    """They are whole laws of `make test` in the same run of continuous integration."""
    words = ["-m", "long", "--sample", "8", "--slice", "1", "--collect-only", "-q", "tests/unit/wire/test_sse.py"]
    asked = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
    sliced, whole = (
        subprocess.run(given, cwd=ROOT, capture_output=True, text=True).stdout
        for given in (asked, [word for word in asked if word not in ("--slice", "1")])
    )
    sampled = {line for line in whole.splitlines() if line.startswith("tests/") and "[" in line}
    assert sampled
    assert not sampled & set(sliced.splitlines())


def test_the_two_targets_that_share_all_cases_sample_the_same() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in ("test", "test-long"):
        (recipe,) = re.findall(rf"^{target}: .*\n(?:\t.*\n)+", makefile, re.MULTILINE)
        assert " $(SAMPLED) " in recipe


def test_a_changed_room_brings_its_tests_and_the_conformance_of_what_requests_pass() -> None:
    assert proofs_of([PurePosixPath("docs/limits.md")]) == ["tests/repo"]
    assert proofs_of([PurePosixPath("gateway/fleet/pool.py")]) == ["tests/repo", "tests/unit/fleet"]
    wanted = {"tests/repo", "tests/unit/wire", "tests/laws/conformance"}
    assert set(proofs_of([PurePosixPath("gateway/wire/sse.py")])) == wanted
    assert "tests/unit/workers" in proofs_of([PurePosixPath("workers/registry.py")])
    assert "tests/unit/test_resolve.py" in proofs_of([PurePosixPath("gateway/resolve.py")])
