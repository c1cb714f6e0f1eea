"""The workflow of a release: its steps are targets, its actions are pinned, and its jobs have the least rights."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.repo.test_docs import targets
from tests.repo.tree import ROOT

WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
PINNED = re.compile(r"^\s*(?:- )?uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
STEP = re.compile(r"""make ([a-z-]+)((?: [A-Z]+="[\w $-]*")*)""")
# What signs or publishes; all else reads the repository at most.
RIGHTS = {
    "publish": {"contents": "read", "packages": "write", "id-token": "write", "attestations": "write"},
    "pypi": {"id-token": "write"},
}


def faults(text: str) -> list[str]:
    """What is wrong with a workflow."""
    made = targets(ROOT / "Makefile")
    flow: dict[Any, Any] = yaml.safe_load(text)
    found = [] if flow.get("permissions") == {} else ["rights that every job has"]
    found += [f"not pinned: {line.strip()}" for line in text.splitlines() if "uses:" in line and not PINNED.match(line)]
    for name, job in flow["jobs"].items():
        if job.get("permissions") != RIGHTS.get(name, {"contents": "read"}):
            found.append(f"rights of the job {name}: {job.get('permissions')}")
        if "timeout-minutes" not in job:
            found.append(f"the job {name} may run for ever")
        for step in job["steps"]:
            if "run" in step and not ((match := STEP.fullmatch(step["run"])) and match[1] in made):
                found.append(f"the job {name} runs what is not a target of the Makefile: {step['run']}")
            if "actions/checkout@" in step.get("uses", "") and step.get("with") != {"persist-credentials": False}:
                found.append(f"the job {name} leaves its token in the checkout")
    return found


def test_the_workflow_is_targets_pinned_actions_and_least_rights() -> None:
    assert faults(WORKFLOW.read_text()) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("permissions: {}\n", "", "rights that every job has"),
        ("permissions: {}\n", "permissions: {contents: write}\n", "rights that every job has"),
        ("permissions: {contents: read}", "permissions: {contents: write}", "rights of the job"),
        ("11bd71901bbe5b1630ceea73d27597364c9af683 # v4.2.2", "v4", "not pinned"),
        ("run: make lint", "run: ruff check", "is not a target"),
        ("run: make lint", "run: make lintt", "is not a target"),
        ("run: make lint", "run: make lint && curl x", "is not a target"),
        ("--tag $TAG wheels", "--tag ${{ github.ref_name }} wheels", "is not a target"),
        ("persist-credentials: false", "persist-credentials: true", "leaves its token"),
        ("    timeout-minutes: 60\n", "", "may run for ever"),
    ],
)
def test_what_breaks_a_rule_is_found(old: str, new: str, fault: str) -> None:
    text = WORKFLOW.read_text()
    assert old in text
    assert any(fault in one for one in faults(text.replace(old, new, 1)))


def test_only_tags_of_versions_start_it() -> None:
    """A tag's name reaches a shell."""
    # YAML 1.1 reads the key `on` as a truth value.
    assert yaml.safe_load(WORKFLOW.read_text())[True] == {"push": {"tags": ["v[0-9]+.[0-9]+.[0-9]+"]}}


def test_nothing_is_published_before_all_is_tested_and_built() -> None:
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    assert set(jobs["publish"]["needs"]) == jobs.keys() - RIGHTS.keys()
    assert jobs["pypi"]["needs"] == "publish"
    assert {jobs[name]["environment"] for name in RIGHTS} == {"release"}
