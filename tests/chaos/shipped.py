"""C1: what is wrong is refused before it runs: configurations, charts and dependencies.

Nothing of it is about load: the row asks the commands that operators use, as processes.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import requires, version
from typing import Any

from packaging.requirements import Requirement

from tests.acceptance.helm.chart import SETS, Object, objects, pods
from tests.acceptance.helm.property import at
from tests.chaos.row import FULL, SEED, Findings, row
from tests.repo.tree import ROOT

BROKEN = ROOT / "tests" / "unit" / "broken_configs"
CONFIGS = 200 if FULL else 40
OF_FEWER_DIALECTS = {"no_dialect_enabled.yaml"}
"""Wrong only where there are no dialects but the two that tests/unit/config/reading.py knows."""
LINE = re.compile(r"(?:[\w./]+:[1-9]\d*|environment): \S.*: \S.*")
TIMEOUT_S = 60.0
ENVIRON = {"DEFINED_KEY": "canary-key", "SPACED_KEY": "canary key", "PATH": os.environ.get("PATH", "")}


@row("C1", "broken configurations, what a chart must have, floors of dependencies (S12 in it)")
async def shipped(findings: Findings) -> None:
    """40 of the broken configurations in `tests/unit/broken_configs`, `FULL=1`: all, each given to `dragoman check`
    and `dragoman serve`; the chart's value sets, rendered; the installed packages.

    Passes if each is refused with a status other than 0, its lines name file, line and key, none is a traceback or
    holds a secret, nothing listens; no Pod lacks a NetworkPolicy, a user that is not root, seccomp, dropped
    capabilities, a read-only root, no gateway its preStop pause, no gateway or worker its grace; no package is
    below its floor.
    """
    await configurations(findings)
    charts(findings)
    floors(findings)


# -- configurations -------------------------------------------------------------------------------------------------


async def configurations(findings: Findings) -> None:
    found = {
        path.name: path.read_text() for path in sorted(BROKEN.glob("*.yaml")) if path.name not in OF_FEWER_DIALECTS
    }
    drawn = random.Random(SEED).sample(list(found.items()), min(CONFIGS, len(found)))
    gate = asyncio.Semaphore(max(1, (os.cpu_count() or 2) // 2))
    for words in (("check",), ("serve", "--config")):
        wrong = [each for each in await asyncio.gather(*(refused(gate, words, *one) for one in drawn)) if each]
        what = f"`dragoman {words[0]}` refuses each with a status, file and line, and no traceback"
        findings.check(what, f"{len(drawn) - len(wrong)} of {len(drawn)}{''.join(wrong[:3])}", len(drawn), not wrong)


async def refused(gate: asyncio.Semaphore, words: Sequence[str], name: str, text: str) -> str:
    """What is wrong with how the command refuses the file; "" for nothing."""
    environ = {**ENVIRON, **dict(re.findall(r"^# env (\w+)=(.*)$", text, re.MULTILINE))}
    async with gate:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway.cli", *words, name),
            cwd=BROKEN,
            env=environ,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()
            return f"; {name}: it goes on"
    lines = err.decode().splitlines()
    if process.returncode in (0, None) or out or not lines:
        return f"; {name}: status {process.returncode}, {len(lines)} lines"
    strange = [line for line in lines if not LINE.fullmatch(line) or "canary" in line]
    return f"; {name}: {strange[0][:120]}" if strange else ""


# -- the chart ------------------------------------------------------------------------------------------------------


def charts(findings: Findings) -> None:
    missing: list[str] = []
    asked = 0
    for name in SETS:
        among = objects(name)
        policies = [one["spec"]["podSelector"]["matchLabels"] for one in among if one["kind"] == "NetworkPolicy"]
        for where, pod in pods(among):
            for field, there in fields(pod, policies).items():
                asked += 1
                missing += [f"; {name}: {where} lacks {field}"] * (not there)
    what = f"Pods of {len(SETS)} value sets have preStop, a grace, a NetworkPolicy, no root and no rights"
    findings.check(what, f"{len(missing)} missing{''.join(missing[:3])}", asked, not missing)


def fields(pod: Object, policies: Sequence[Mapping[str, str]]) -> dict[str, bool]:
    """What the Pod must have -> whether it has it. The Pod of a test and Valkey end at once; the ranks of a group end
    with their leader."""
    spec = pod["spec"]
    (container,) = spec["containers"]
    labels = pod["metadata"]["labels"]
    found = {
        "a NetworkPolicy": any(policy.items() <= labels.items() for policy in policies),
        "runAsNonRoot": has(spec, "securityContext.runAsNonRoot", True),
        "a seccomp profile": has(spec, "securityContext.seccompProfile.type", "RuntimeDefault"),
        "no token": spec.get("automountServiceAccountToken") is False,
        "no escalation": has(container, "securityContext.allowPrivilegeEscalation", False),
        "no capabilities": has(container, "securityContext.capabilities.drop", ["ALL"]),
        "a read-only root": has(container, "securityContext.readOnlyRootFilesystem", True),
    }
    component = labels["app.kubernetes.io/component"]
    if component in ("gateway", "worker"):
        found["a grace"] = spec.get("terminationGracePeriodSeconds", 0) > 30
    if component == "gateway":
        found["preStop"] = "lifecycle" in container and "preStop" in container["lifecycle"]
    return found


def has(value: Any, path: str, wanted: object) -> bool:
    try:
        return bool(at(value, path) == wanted)
    except (LookupError, TypeError):
        return False


# -- dependencies ---------------------------------------------------------------------------------------------------


def floors(findings: Findings) -> None:
    """Of what is installed here from the locks; tests/repo/test_locks.py has the locks themselves."""
    needs = [Requirement(text) for text in requires("dragoman") or ()]
    own = [need for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    below = [str(need) for need in own if not need.specifier.contains(version(need.name))]
    below += [f"{need} has no floor" for need in own if not any(one.operator in (">=", "==") for one in need.specifier)]
    findings.check("dependencies are not below their floors", below or "0 below", len(own), not below)
