"""`dragoman completion SHELL`: a script by which a shell completes commands, options and their values.

At each Tab the script asks `dragoman completion --words ...`, and that asks the parsers themselves: a script that was
saved once knows the options of every later version.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from gateway import cli

_SCRIPTS = {
    "bash": """\
_dragoman() {
    local IFS=$'\\n'
    COMPREPLY=($(dragoman completion --words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f1))
}
complete -o default -F _dragoman dragoman
""",
    "zsh": """\
#compdef dragoman
_dragoman() {
    local -a found
    found=("${(@f)$(dragoman completion --words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    found=("${(@)found//:/\\\\:}")
    found=("${(@)found/$'\\t'/:}")
    if [ -n "$found[1]" ]; then _describe dragoman found; else _files; fi
}
if [ "$funcstack[1]" = _dragoman ]; then _dragoman; else compdef _dragoman dragoman; fi
""",
    "fish": """\
function __dragoman
    set -l words (commandline -opc) "$(commandline -ct)"
    set -l found (dragoman completion --words $words[2..] 2>/dev/null)
    if set -q found[1]
        printf '%s\\n' $found
    else
        __fish_complete_path "$(commandline -ct)"
    end
end
complete -c dragoman -f -a '(__dragoman)'
""",
}
ABOUT = (
    "Save it where the shell looks: for bash ~/.local/share/bash-completion/completions/dragoman, for zsh _dragoman in "
    "a folder of $fpath, for fish ~/.config/fish/completions/dragoman.fish. Later versions of dragoman need no other."
)


def options(parser: argparse.ArgumentParser) -> None:
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("shell", nargs="?", choices=_SCRIPTS, help="the shell")
    words = "for the script: print what may stand for the last of these words, each with its meaning behind a tab"
    asked.add_argument("--words", nargs=argparse.REMAINDER, help=f"{words} (default: print the script)")


def run(options: argparse.Namespace) -> int:
    if options.words is None:
        print(_SCRIPTS[options.shell], end="")
        return 0
    for word, meaning in candidates(options.words):
        print(f"{word}\t{' '.join(meaning.split())}" if meaning else word)
    return 0


def candidates(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(word, meaning) for each word that may stand for the last of `words`. There is none where any text or a file may
    stand."""
    *before, begun = words or [""]
    before = [word for word in before if word != "="]  # bash makes it a word of its own
    begun = begun.removeprefix("=")
    parser = cli.parser(before)
    for word in before:
        parser = _commands(parser).get(word, parser)
    options = {word: one for one in parser._actions for word in one.option_strings}  # argparse has no public list
    name, equals, value = begun.partition("=")
    if before and before[-1] in options and options[before[-1]].nargs != 0:
        yield from _values(options[before[-1]], begun)
    elif equals and name in options:
        yield from ((f"{name}={word}", meaning) for word, meaning in _values(options[name], value))
    elif begun.startswith("-"):
        yield from ((word, one.help or "") for word, one in options.items() if word.startswith(begun))
    else:
        for one in parser._actions:  # as above
            if not one.option_strings:
                yield from _values(one, begun)


def _values(action: argparse.Action, begun: str) -> Iterator[tuple[str, str]]:
    """The values to choose from that begin so."""
    meanings = {}
    if isinstance(action, argparse._SubParsersAction):  # its class has no public name
        meanings = {one.dest: one.help or "" for one in action._get_subactions()}  # nor has this a public method
    yield from ((name, meanings.get(name, "")) for name in map(str, action.choices or ()) if name.startswith(begun))


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Those of a parser, by name."""
    found = (one.choices for one in parser._actions if isinstance(one, argparse._SubParsersAction))  # as above
    return next(found, {})
