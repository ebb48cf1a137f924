"""`ramify completion SHELL`: a script for the shell, which asks the same command for the words that can follow.

The candidates come from the parsers themselves, so they are never out of date.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ramify.commands.parser import make_parser, recipe_file, write_as_it_is
from ramify.config import shipped_recipes

FILES = "@files"
"""A line that stands for the files of the shell's folder."""

_SCRIPTS = {
    "bash": """\
# Put this into ~/.bashrc: source <(ramify completion bash)
_ramify() {
    local cur=${COMP_WORDS[COMP_CWORD]} line
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ $line == @files ]]; then
            while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "$cur")
        else
            COMPREPLY+=("$line")
        fi
    done < <(ramify completion bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o filenames -F _ramify ramify
""",
    "zsh": """\
# Put this into ~/.zshrc, below compinit: source <(ramify completion zsh)
_ramify() {
    local -a lines
    lines=(${(f)"$(ramify completion zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    (( ${lines[(Ie)@files]} )) && _files
    compadd -- ${lines:#@files}
}
compdef _ramify ramify
""",
    "fish": """\
# Put this into ~/.config/fish/config.fish: ramify completion fish | source
function __ramify
    set -l words (commandline -opc)
    for line in (ramify completion fish -- $words[2..-1] (commandline -ct) 2>/dev/null)
        if test "$line" = @files
            __fish_complete_path (commandline -ct)
        else
            echo $line
        end
    end
end
complete -c ramify -f -a '(__ramify)'
""",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("shell", choices=tuple(_SCRIPTS), help="print the script of this shell")
    parser.add_argument(
        "words",
        # With "*", argparse takes the word -- for its own.
        nargs=argparse.REMAINDER,
        metavar="WORD",
        help="instead: the words that can stand for the last of these",
    )


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    if options.words:
        write_as_it_is("".join(f"{word}\n" for word in candidates(options.commands, options.words)))
    else:
        write_as_it_is(_SCRIPTS[options.shell])


def candidates(commands: Mapping[str, str], words: Sequence[str]) -> Iterator[str]:
    """Yield what can stand for the last of these words of a command line; `FILES` for any file."""
    *before, last = words
    command = next((word for word in before if not word.startswith("-")), None)
    parser = make_parser(commands, command)
    expected: argparse.Action | None = None
    for word in before:
        parser, expected = _after(parser, expected, word)
    if expected is not None:
        choices = _values(expected)
    elif last.startswith("-"):
        choices = (option for action in parser._actions for option in action.option_strings)
    else:
        choices = (
            value for action in parser._actions if not action.option_strings for value in _values(action)
        )
    yield from dict.fromkeys(choice for choice in choices if choice == FILES or choice.startswith(last))


def _after(
    parser: argparse.ArgumentParser, expected: argparse.Action | None, word: str
) -> tuple[argparse.ArgumentParser, argparse.Action | None]:
    """Return the parser of what follows a word, and the option whose value must follow."""
    if expected is not None:
        return parser, None
    for action in parser._actions:
        if word in action.option_strings:
            return parser, None if action.nargs in (0, "?") else action
        if isinstance(action, argparse._SubParsersAction) and word in action.choices:
            return action.choices[word], None
    return parser, None


def _values(action: argparse.Action) -> Iterator[str]:
    if action.choices is not None:
        yield from map(str, action.choices)
    elif action.type is recipe_file:
        yield from sorted(recipe.stem for recipe in shipped_recipes().glob("*.toml"))
        yield FILES
    elif action.type is Path:
        yield FILES
