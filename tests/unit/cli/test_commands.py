"""The command `dragoman`: its commands but for those that have a module of tests of their own."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import jsonschema
import pytest
import yaml

from gateway import cli
from tests.repo.tree import ROOT
from tests.support.commands import CLEAN, called, dragoman
from tests.support.harness import Stack

CONFIG = ROOT / "gateway.yaml"


@pytest.mark.long
def test_a_reader_that_has_had_enough_ends_a_command_without_a_traceback() -> None:
    """As in `dragoman routes | head -3`."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as output:
        command = [sys.executable, "-m", "gateway.cli", "routes", "--config", str(CONFIG)]
        ended = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, timeout=300, env=CLEAN)
    assert (ended.returncode, ended.stderr) == (1, b"")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nothing",),
        ("check", "a", "--config", "b"),
        ("keys",),
        ("limits", "show", "--address", "10.0.0.0/8"),
        ("worker",),
        ("worker", "nothing"),
    ],
)
def test_wrong_use_is_explained(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: dragoman")


VERBS = {
    "keys": ("create a", "list", "show a", "update a", "rotate a", "revoke a", "export", "import a", "refill"),
    "teams": ("list", "show a", "set a", "delete a"),
}


@pytest.mark.parametrize(("name", "verb"), [(name, verb) for name, verbs in VERBS.items() for verb in verbs])
def test_an_address_that_is_none_is_named(tmp_path: Path, name: str, verb: str) -> None:
    (tmp_path / "admin.key").write_text("key")
    words = (name, *verb.split(), "--key-file", "admin.key")
    for address in ("http://h:port", "http://[::1", "h"):
        found = called(*words, "--gateway", address, folder=tmp_path)
        assert (found.returncode, found.stdout) == (2, "")
        assert re.fullmatch(r"dragoman: --gateway (is not a URL: .*|must begin with .*)\n", found.stderr)
    status = called("status", "--once", "--url", "http://h:port")
    assert (status.returncode, status.stderr) == (2, "dragoman: --url is not a URL: Invalid port: 'port'\n")


def test_each_verb_is_tried_with_such_an_address() -> None:
    for name, verbs in VERBS.items():
        shown = called(name, "--help").stdout
        found = re.findall(r"^    ([a-z]+)  ", shown, re.MULTILINE)
        assert set(found) - {"new"} == {verb.split()[0] for verb in verbs}


def interrupt(*_: object) -> str:
    """As Ctrl-C does, at this place."""
    signal.raise_signal(signal.SIGINT)
    return ""


@pytest.mark.parametrize("place", ["gateway.cli.parser", "gateway.cli.routes.run"])
def test_ctrl_c_ends_a_command_without_a_traceback(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setattr(place, interrupt)
    ended = called("routes", "--config", str(CONFIG))
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_ctrl_c_at_the_question_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "there.tgz").write_text("older")
    models = "models: {m: {backend: vllm, workers: ['http://127.0.0.1:1']}}"
    (tmp_path / "gateway.yaml").write_text(f"redis: {{addresses: ['127.0.0.1:1']}}\n{models}\n")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True, readline=interrupt))
    ended = called("backup", "there.tgz", "--config", "gateway.yaml", folder=tmp_path)
    said = "there.tgz is replaced. Go on? [y/N] \ndragoman: nothing was changed\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", said)
    assert (tmp_path / "there.tgz").read_text() == "older"


def test_the_schema_is_one_and_accepts_our_own_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    validator = jsonschema.validators.validator_for(schema)
    validator.check_schema(schema)
    validator(schema).validate(yaml.safe_load(CONFIG.read_text()))
    with pytest.raises(jsonschema.ValidationError):
        validator(schema).validate({"listne": {}})


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    origin = r"(checkout|commit [\w-]+, built \d{4}-\d\d-\d\d)"
    assert re.fullmatch(rf"dragoman \d+\.\d+\.\d+\S* \({origin}; native relay: (yes|no)\)\n", capsys.readouterr().out)


def test_routes_lists_method_path_and_dialect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["routes"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert {len(line) for line in lines} == {3, 5, 6}
    assert ["GET", "/v1/models", "cohere", "(with", "x-fern-sdk-name:", "cohere...)"] in lines
    assert ["GET", "/v1/models", "anthropic", "(with", "anthropic-version)"] in lines
    assert ["POST", "/v1/chat/completions", "openai"] in lines
    assert ["POST", "/openai/v1/chat/completions", "openai"] in lines
    assert ["GET", "/livez", "-"] in lines
    moved = tmp_path / "moved.yaml"
    moved.write_text(
        yaml.safe_dump(
            {
                "models": {"m": {"backend": "vllm", "workers": ["http://127.0.0.1:9"]}},
                "dialects": {"openai": {"prefixes": ["/elsewhere"]}},
                "metrics": {"enabled": False},
            }
        )
    )
    assert cli.main(["routes", "--config", str(moved)]) == 0
    paths = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert "/elsewhere/v1/chat/completions" in paths
    assert not {"/v1/chat/completions", "/metrics"} & set(paths)


@pytest.mark.long
def test_a_name_beyond_the_terminals_characters_is_shown_as_yaml_reads_it() -> None:
    made = dragoman("keys", "new", "--name", "clé", PYTHONIOENCODING="ascii")
    assert made.returncode == 0, made.stderr
    assert list(yaml.safe_load(made.stdout)) == ["clé"]


def test_a_new_key_opens_the_door(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["keys", "new", "--name", "team-a", "--team", "research"]) == 0
    said = capsys.readouterr()
    (key,) = re.findall(r"dgm_\w+", said.err)
    # What a redirection takes is a keys file, without the key.
    entry = yaml.safe_load(said.out)
    assert key not in said.out
    # Nothing follows the last line on a terminal whose standard output goes to that file.
    assert said.err.rstrip().endswith(
        "Standard output has its entry, for a keys file or, indented, for `keys:` in gateway.yaml."
    )
    with Stack(config={"keys": entry}) as stack:
        url = stack.url + "/v1/models"
        assert httpx.get(url).status_code == 401
        assert httpx.get(url, headers={"authorization": f"Bearer {key}"}).status_code == 200
        assert httpx.get(url, headers={"api-key": key[:-1] + ("a" if key[-1] != "a" else "b")}).status_code == 401
        assert [record["key"] for record in stack.records()][1:2] == ["team-a"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--name", "a\nb"], "the name must be 1 to 200 characters"),
        (["--name", "a", "--team", "b c"], "the team must be 1 to 200 characters"),
        (["--name", "jwt:alice"], "the name must not begin with jwt:"),
        (["--name", "dgm_k3v9q0x2mz_" + "a" * 43 + "_abcdef"], "the name looks like a key"),
    ],
)
def test_a_key_is_not_made_under_a_name_that_no_configuration_takes(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["keys", "new", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"dragoman: {said}")


def test_where_nobody_names_a_file_it_is_looked_for(tmp_path: Path) -> None:
    for found in (
        dragoman("serve", folder=tmp_path),
        called("check", folder=tmp_path),
        called("limits", "show", folder=tmp_path),
    ):
        assert (found.returncode, found.stdout) == (2, "")
        (line,) = found.stderr.splitlines()
        assert line.startswith("dragoman: no configuration file: give --config FILE, set DRAGOMAN_CONFIG, or ")
    (tmp_path / "gateway.yaml").write_text("models: {m: {backend: vllm, workers: ['http://127.0.0.1:1']}}")
    alone = called("limits", "show", folder=tmp_path)
    assert "see its /metrics, where `metrics.top_keys` adds figures by key" in alone.stderr
    (tmp_path / "gateway.yaml").unlink()
    half = called("check", folder=tmp_path, DRAGOMAN_LISTEN__PORT="http").stderr.splitlines()[1:-1]
    assert half == ["environment: DRAGOMAN_LISTEN__PORT: must be a whole number"]
    (tmp_path / "gateway.yaml").write_text("models: 1\n")
    (tmp_path / "other.yaml").write_text("models: 2\n")
    assert called("check", folder=tmp_path).stderr.startswith("gateway.yaml:1: models: ")
    named = dragoman("serve", folder=tmp_path, DRAGOMAN_CONFIG="other.yaml")
    assert named.stderr.startswith("other.yaml:1: models: ")
    assert len(named.stderr.splitlines()) == 2  # the rules of models wait


@pytest.mark.parametrize("kind", cli.WORKERS)
def test_a_worker_explains_itself(kind: str) -> None:
    said = dragoman("worker", kind, "--help")
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith(f"usage: dragoman worker {kind}")
    assert f"example: dragoman worker {kind} --" in said.stdout


def parsers(found: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield found
    for action in found._actions:  # argparse has no public list of them, nor of the kinds below
        if isinstance(action, argparse._SubParsersAction):  # likewise
            for inner in action.choices.values():
                yield from parsers(inner)


CONFIGURED = {
    one.prog: one
    for name in cli.COMMANDS
    for one in parsers(cli.parser([name]))
    if f"dragoman {name}" in one.prog and "--config" in one.format_usage()
}


@pytest.mark.parametrize("command", CONFIGURED)
def test_a_file_alone_is_the_configuration(command: str) -> None:
    """But for commands that have another argument alone, which refuse a second one."""
    parser, words = CONFIGURED[command], command.split()[1:]
    own = [f"--key-file={CONFIG}"] if words[0] in ("keys", "teams") else []
    other = words[0] in ("backup", "restore")
    other = other or (words[0] in ("keys", "teams") and words[1] not in ("list", "export", "refill"))
    argument = ["one"] if other else []
    assert parser.parse_args([*own, *argument, "--config", "a.yaml"]).config == "a.yaml"
    assert parser.parse_args([*own, *argument]).config is None
    with pytest.raises(SystemExit):
        parser.parse_args([*own, *argument, "a.yaml", "--config", "b.yaml"])
    if not other:
        assert parser.parse_args([*own, "a.yaml"]).config == "a.yaml"


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_a_command_explains_itself_and_its_example_is_one(command: str) -> None:
    """Each option with its meaning, and with what it is where it is not given."""
    found = next(one for one in parsers(cli.parser([command])) if one.prog == f"dragoman {command}")
    line = cli.COMMANDS[command][0]
    assert len(found.description or "") > 2 * len(line), "there is no more than the line of `dragoman --help`"
    for one in parsers(found):
        said = one.format_help()
        assert one.description
        assert one.description.endswith(".")
        assert one.description in " ".join(said.split())
        assert one.epilog is not None
        example = one.epilog.removeprefix("example: ")
        assert example.startswith(f"{one.prog} ")
        words = shlex.split(re.split(" [<>|]", example)[0])[1:]
        if command != "worker":
            cli.parser(words).parse_args(words)
        for action in one._actions:  # as above
            if not isinstance(action, argparse._SubParsersAction):  # likewise
                assert action.help, action.option_strings
            takes = action.nargs != 0 and action.option_strings and not action.required
            if takes and not isinstance(action, argparse._AppendAction):  # likewise
                assert "default" in (action.help or "") or action.help == "the same", action.option_strings
