"""What pages say and a program can check: examples in YAML, command lines, options, metrics, events, files.

`tests/acceptance/helm/test_page.py` renders the values of docs/kubernetes.md,
`tests/unit/config/test_config_reference.py` loads the examples of docs/configuration.md and docs/limits.md,
`tests/repo/test_docs.py` looks at links and targets of `make`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gateway import cli
from gateway.app import KNOWN
from gateway.config import ConfigError, load
from gateway.observe.catalogue import FIGURES
from tests.acceptance.helm.chart import CHART
from tests.repo.test_docs import FENCE
from tests.repo.test_production import events
from tests.repo.tree import ROOT, tracked

PAGES = [path for path in tracked("*.md") if path.name != "CHANGELOG.md"]  # which names what is gone
EACH = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
YAML = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```(?:sh|bash|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
GATEWAY: dict[str, Any] = json.loads((ROOT / "docs" / "gateway.schema.json").read_text())
REST = {
    "models": {"m": {"backend": "vllm", "workers": ["http://127.0.0.1:9"]}},
    "keys": {"k": {"hash": f"sha256:{'0' * 64}"}},
}
"""What an example of a part leaves out."""
VALUES: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())


def prose(page: Path) -> list[str]:
    """What stands in backticks outside of fenced code."""
    return CODE.findall(FENCE.sub("", page.read_text()))


# -- YAML -------------------------------------------------------------------------------------------------------------


def wrong_yaml(text: str, folder: Path) -> list[str]:
    """What is wrong with an example: a configuration of the gateway (perhaps a part of one), a file of keys, or
    values of the chart."""
    given = yaml.safe_load(text)
    if not isinstance(given, dict):
        return []
    if all(isinstance(one, dict) and "hash" in one for one in given.values()):
        given = {"keys": given}
    found = [f"neither configuration, nor keys, nor values: {list(given)}"]
    if given.keys() <= GATEWAY["properties"].keys():
        found = faults(REST | given, folder)
    if found and given.keys() <= VALUES["properties"].keys():
        found = [error.message for error in jsonschema.Draft202012Validator(VALUES).iter_errors(given)]
    return found


def faults(config: dict[str, Any], folder: Path) -> list[str]:
    file = folder / "gateway.yaml"
    file.write_text(yaml.safe_dump(config))
    try:
        load(file, KNOWN, {}, only=())
    except ConfigError as error:
        return [str(one) for one in error.faults]
    return []


@EACH
def test_examples_in_yaml_are_taken(page: Path, tmp_path: Path) -> None:
    found = {text[:60]: wrong_yaml(text, tmp_path) for text in YAML.findall(page.read_text())}
    assert {name: said for name, said in found.items() if said} == {}


# -- command lines ----------------------------------------------------------------------------------------------------


def parts(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands below a parser, by name."""
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:  # argparse has no public list of them, nor of their kinds
        if isinstance(action, argparse._SubParsersAction):  # likewise
            found.update(action.choices)
    return found


def wrong_command(words: list[str]) -> str | None:
    """What `dragoman` does not know of a command line: its command, or an option."""
    if not words or words[0].startswith("-") or not words[0].isalpha():
        return None
    if words[0] not in cli.COMMANDS:
        return f"no command {words[0]}"
    if words[0] == "worker":
        return wrong_worker(words[1:])
    parser = parts(cli.parser(words))[words[0]]
    at = 1
    while (below := parts(parser)) and at < len(words) and not words[at].startswith("-"):
        if words[at] not in below:
            return f"no command {words[0]} {words[at]}"
        parser, at = below[words[at]], at + 1
    known = {option for action in parser._actions for option in action.option_strings}  # likewise
    unknown = [word for word in words[at:] if word.startswith("--") and word.partition("=")[0] not in known]
    return f"{words[0]}: no option {unknown[0]}" if unknown else None


@cache
def worker_options(kind: str) -> set[str]:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), pytest.raises(SystemExit):
        cli.main(["worker", kind, "--help"])
    return set(re.findall(r"--[a-z][a-z0-9-]*", shown.getvalue()))


def wrong_worker(words: list[str]) -> str | None:
    """As `wrong_command`. An option that is not the worker's own is vLLM's."""
    if not words or words[0].isupper() or words[0] == "vllm":
        return None
    if words[0] not in cli.WORKERS:
        return f"no worker {words[0]}"
    ours = [word.partition("=")[0] for word in words if word.startswith("--")]
    unknown = [word for word in ours if word not in worker_options(words[0])]
    return f"worker {words[0]}: no option {unknown[0]}" if unknown else None


def commands(text: str) -> Iterator[list[str]]:
    """The words behind `dragoman` in what a shell reads, up to a pipe or a redirection."""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        for found in re.finditer(r"(?:^|[\s/(])dragoman ((?:[a-z]|--)[^|<>;&)#`]*)", line):
            try:
                yield shlex.split(found[1])
            except ValueError:
                yield found[1].split()


@EACH
def test_command_lines_name_commands_and_options_that_there_are(page: Path) -> None:
    text = page.read_text()
    said = [one for block in SHELL.findall(text) for one in commands(block)]
    said += [one for code in prose(page) if code.startswith("dragoman ") for one in commands(code)]
    assert [wrong for words in said if (wrong := wrong_command(words))] == []


# -- names ------------------------------------------------------------------------------------------------------------

METRIC = re.compile(r"\bdragoman_[a-z_]+\b(?!@|\.)")
SERIES = ("_bucket", "_sum", "_count")
DOTTED = re.compile(r"(?:[a-z][A-Za-z0-9_]*|\*|[A-Z]+)(?:\[\])?(?:\.(?:[a-z][A-Za-z0-9_]*|\*|[A-Z]+)(?:\[\])?)+")
ELSEWHERE = {
    "models[].workers[].reason": "a member of /status.json",
    "models[].workers[].served_as": "a member of /status.json",
    "models[].workers[].meaning": "a member of /status.json",
    "models[].workers[].proxy": "a member of /status.json",
    "gateway.deployment.runtime.active.requests": "an attribute, in a debugger",
    "tools[].function.x": "a field of a request",
    "models.x.y": "stands for any value",
    "limiter.namespace": "an option of before",
    "gateway.kv_events": "a member of a model in the chart's values",
}
"""Names that look like options, and what they are."""
NO_METRICS = {
    "dragoman_config": "a function of bench/subjects.py",
    "dragoman_connection": "a variable of nginx",
    "dragoman_upgrade": "a variable of nginx",
    **dict.fromkeys(
        (f"dragoman_{name}_seconds" for name in ("first_output", "output_gap", "request")),
        "former, in docs/upgrading.md",
    ),
}
MADE = re.compile(r"bench/out/|.*/x(/|\.|$)")
"""Paths that are there once somebody has made them."""
FILE = re.compile(r"(?:gateway|workers|tests|scripts|deploy|helm|docs|bench|requirements)/[\w./*-]+")


def below(schema: dict[str, Any], node: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """The schemas of the member `name` of what `node` describes, in each of its alternatives."""
    node = schema["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node
    for one in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        yield from below(schema, one, name)
    if isinstance(node.get("items"), dict):
        yield from below(schema, node["items"], name)
    if name in node.get("properties", {}):
        yield node["properties"][name]
    elif isinstance(node.get("additionalProperties"), dict):
        yield node["additionalProperties"]
        yield from ()


def there(schema: dict[str, Any], path: list[str]) -> bool:
    nodes = [schema]
    for name in path:
        nodes = [one for node in nodes for one in below(schema, node, name)]
    return bool(nodes)


def unknown_options(page: Path) -> Iterator[str]:
    """Dotted names that begin as an option does, of the gateway or of the chart, and end nowhere."""
    for code in prose(page):
        name = code.partition(":")[0].partition("=")[0].strip()
        if not DOTTED.fullmatch(name) or name.endswith((".yaml", ".py", ".json", ".md", ".tpl")):
            continue
        path = name.replace("[]", "").split(".")
        schemas = [one for one in (GATEWAY, VALUES) if path[0] in one["properties"]]
        if schemas and not any(there(one, path) for one in schemas):
            yield name


@EACH
def test_options_in_prose_exist(page: Path) -> None:
    assert set(unknown_options(page)) - ELSEWHERE.keys() == set()


@EACH
def test_metrics_in_pages_exist(page: Path) -> None:
    named = set(METRIC.findall(page.read_text()))
    known = {name + end for name in FIGURES for end in ("", *SERIES)} | NO_METRICS.keys()
    assert {name for name in named - known if not name.endswith("_")} == set()


@EACH
def test_files_in_prose_exist(page: Path) -> None:
    found = {name for name in prose(page) if FILE.fullmatch(name) and not MADE.match(name)}
    assert [name for name in found if not list(ROOT.glob(name.rstrip("/.")))] == []


def test_events_that_pages_look_for_are_logged() -> None:
    """The pages name them behind the words `log line(s)`."""
    logged = set(events()) | {"log lines lost"}
    found = {
        name
        for page in PAGES
        for line in re.findall(r"[Ll]og lines? ((?:`[^`]+`(?:, | and )?)+)", page.read_text())
        for name in CODE.findall(line)
        if not name.startswith("dragoman")  # a metric, or a command
    }
    assert len(found) > 5
    assert [name for name in found if not any(name.startswith(one) for one in logged)] == []


# -- what would be found ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "```yaml\nqueue: {cold_start: 5m}\n```\n",
        "```yaml\ngateway: {replica: 3}\n```\n",
        "```yaml\nnothing: {of: this}\n```\n",
        "```sh\n.venv/bin/dragoman chek gateway.yaml\n```\n",
        "```sh\ndragoman keys create --name a \\\n  --optoins b | cat\n```\n",
        "```sh\ndragoman worker simulated --prot 1\n```\n",
        "`dragoman limits rest`",
        "`queue.cold_start`",
        "`models.*.queues`",
        "`modelDefaults.kvEvent.port`",
        "`dragoman_workers_ready`",
        "`gateway/fleet/waking_up.py`",
    ],
)
def test_what_is_not_true_is_found(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    laws: tuple[tuple[Callable[..., None], tuple[Path, ...]], ...] = (
        (test_examples_in_yaml_are_taken, (page, tmp_path)),
        (test_command_lines_name_commands_and_options_that_there_are, (page,)),
        (test_options_in_prose_exist, (page,)),
        (test_metrics_in_pages_exist, (page,)),
        (test_files_in_prose_exist, (page,)),
    )
    broken = []
    for law, given in laws:
        try:
            law(*given)
        except AssertionError:
            broken.append(law)
    assert len(broken) == 1
