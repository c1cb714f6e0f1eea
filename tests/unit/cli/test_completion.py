"""`dragoman completion`: what a shell offers at Tab is what the parsers take."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gateway import cli
from gateway.cli.completion import _values, candidates
from gateway.observe.log import LEVELS
from tests.support.commands import CLEAN, called
from tests.unit.cli.test_commands import parsers

SHELLS = ("bash", "zsh", "fish")


def offered(*words: str) -> list[str]:
    return [word for word, _ in candidates(words)]


def test_the_first_word_is_a_command() -> None:
    assert offered() == offered("") == list(cli.COMMANDS)
    assert offered("co") == ["completion"]
    assert dict(candidates(["st"])) == {"status": cli.COMMANDS["status"][0]}


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_option_of_every_command_is_offered(command: str) -> None:
    """And nothing else: each option and each command below it, as the parsers have them."""
    found = next(one for one in parsers(cli.parser([command])) if one.prog == f"dragoman {command}")
    for one in parsers(found):
        words = one.prog.split()[1:]
        actions = one._actions  # argparse has no public list of them
        wanted = {word for action in actions for word in action.option_strings}
        assert set(offered(*words, "-")) == wanted
        below = [name for action in actions for name in action.choices or () if not action.option_strings]
        assert offered(*words, "") == below
        for action in actions:
            for word in action.option_strings:
                values = [] if action.nargs == 0 else list(map(str, action.choices or ()))
                if values:
                    assert offered(*words, word, "") == values


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["logs", "--le"], ["--level"]),
        (["logs", "--level", ""], list(LEVELS)),
        (["logs", "--level", "w"], ["warning"]),
        (["logs", "--level=w"], ["--level=warning"]),
        (["logs", "--level", "=", "w"], ["warning"]),  # as bash parts it
        (["logs", "--level", "="], list(LEVELS)),
        (["logs", "--key", ""], []),
        (["logs", ""], []),  # a file
        (["keys", "ro"], ["rotate"]),
        (["keys", "rotate", "--va"], ["--valid"]),
        (["status", "--json", "--on"], ["--once"]),
        (["nothing", ""], list(cli.COMMANDS)),
        (["translate", "--from", "ge"], ["gemini"]),
    ],
)
def test_values_where_there_is_a_choice_and_files_elsewhere(words: list[str], wanted: list[str]) -> None:
    assert offered(*words) == wanted


def test_the_words_of_a_line_may_be_anything() -> None:
    """As the script hands them over: the command answers, whatever they are."""
    for words in (["--version"], ["-h"], ["--words", "x"], ["--"], ["worker", "simulated", "--"], [""]):
        done = called("completion", "--words", *words)
        assert (done.returncode, done.stderr) == (0, ""), words
    done = called("completion", "--words", "logs", "--f")
    assert done.stdout == "--follow\tgo on with what the gateway adds to the file, until Ctrl-C\n"


def test_no_meaning_has_a_line_of_its_own() -> None:
    for line in called("completion", "--words", "keys", "").stdout.splitlines():
        assert line.count("\t") == 1


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_one_of_its_shell(shell: str, tmp_path: Path) -> None:
    script = called("completion", shell)
    assert (script.returncode, script.stderr) == (0, "")
    if (there := shutil.which(shell)) is None:
        pytest.skip(f"there is no {shell}")
    (tmp_path / "script").write_text(script.stdout)
    assert subprocess.run([there, "-n", tmp_path / "script"], capture_output=True, timeout=60).stderr == b""


def test_bash_completes_by_it(tmp_path: Path) -> None:
    (tmp_path / "dragoman").write_text(f'#!/bin/sh\nexec {sys.executable} -m gateway.cli "$@"\n')
    (tmp_path / "dragoman").chmod(0o755)
    (tmp_path / "script").write_text(called("completion", "bash").stdout)
    line = "COMP_WORDS=(dragoman logs --lev); COMP_CWORD=2; _dragoman; printf '%s\\n' \"${COMPREPLY[@]}\""
    environ = {**CLEAN, "PATH": f"{tmp_path}:{CLEAN['PATH']}"}
    command = ["bash", "--norc", "-c", f". {tmp_path}/script; {line}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)
    assert (done.stdout, done.stderr) == ("--level\n", "")


def test_an_unknown_shell_is_refused() -> None:
    for words in (["tcsh"], [], ["bash", "--words", "x"]):
        assert called("completion", *words).returncode == 2


def test_a_choice_that_is_not_text_is_offered_as_text() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, choices=[1, 2])
    assert [word for word, _ in _values(parser._actions[1], "")] == ["1", "2"]  # argparse has no public list
