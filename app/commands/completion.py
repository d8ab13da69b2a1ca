"""`rampart completion bash`: a script that completes commands, options, names and files when Tab is pressed.

It holds all words, so that Tab does not start the program. Print it again after an update:

    rampart completion bash > ~/.local/share/bash-completion/completions/rampart
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence

from app.catalogue import CATALOGUE
from app.commands import options
from app.commands.attack import attack_parser
from app.commands.cost import cost_parser
from app.commands.plan import plan_parser
from app.configuration import run_parser
from app.recipes import SECTIONS, shipped_recipes

SCRIPT = """\
# Completes the options of rampart; made by `rampart completion bash`.
_rampart() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" option="${{COMP_WORDS[COMP_CWORD-1]}}" words= before=
    if [[ $current == = ]]; then
        current=
    elif [[ $option == = ]]; then
        option="${{COMP_WORDS[COMP_CWORD-2]}}"
    fi
    [[ $option == -c ]] && option=--config
    if [[ $COMP_CWORD == 1 ]]; then
        words="{commands} --help --version"
    else
        case "${{COMP_WORDS[1]}} $option" in
{values}
        esac
    fi
    if [[ $COMP_CWORD != 1 && -z $words ]]; then
        case "${{COMP_WORDS[1]}} $current" in
{options}
        esac
    elif [[ $current == *,* ]]; then
        before="${{current%,*}},"
    fi
    COMPREPLY=($(compgen -P "$before" -W "$words" -- "${{current#"$before"}}"))
}}
complete -o bashdefault -o default -F _rampart rampart
"""
"""Files are completed where no word fits."""

RUN = ("fit", "plan", "cost")
"""Commands with the options of a run."""


def completion(arguments: Sequence[str]) -> int:
    """Print the script; returns the exit code."""
    options.completion_parser().parse_args(list(arguments))
    print(bash_script(), end="")
    return 0


def bash_script() -> str:
    """The script for bash."""
    parsers: dict[str, ArgumentParser] = {
        "fit": run_parser(),
        "attack": attack_parser(),
        "report": options.report_parser(),
        "compare": options.compare_parser(),
        "export": options.export_parser(),
        "validate": options.validate_parser(),
        "predict": options.predict_parser(),
        "plan": plan_parser(),
        "cost": cost_parser(),
        "list": options.list_parser(),
        "completion": options.completion_parser(),
    }
    values = [*_named_values(), *_choices(parsers), _case("list *", CATALOGUE), _case("completion *", ["bash"])]
    known = [_case(f"{name} -*", _long_options(parser)) for name, parser in parsers.items()]
    return SCRIPT.format(commands=" ".join(parsers), values="\n".join(values), options="\n".join(known))


def _named_values() -> Iterator[str]:
    """What the options that the catalogue names may be set to, and recipes of defenses and attacks."""
    found: dict[tuple[str, str], list[str]] = {}
    for usage, entries in CATALOGUE.values():
        option, *_, command = usage.split()
        commands = (command,) if " of rampart " in usage else RUN
        for one in commands:
            found.setdefault((one, option.replace("ANY_NAME", "*")), []).extend(name for name, _ in entries())
    for section, kind in SECTIONS.items():
        recipes = [recipe.name for recipe in shipped_recipes() if recipe.kind == kind]
        found |= {(command, f"--{section}"): recipes for command in RUN}
    for (command, option), names in found.items():
        yield _case(f"{command} {option}", names)


def _choices(parsers: Mapping[str, ArgumentParser]) -> Iterator[str]:
    """Values of options that take one of a few words."""
    for name, parser in parsers.items():
        for action in parser._actions:  # argparse has no other way to its options
            if action.choices and action.option_strings:
                yield _case(f"{name} {action.option_strings[-1]}", map(str, action.choices))


def _long_options(parser: ArgumentParser) -> list[str]:
    strings = (option for action in parser._actions for option in action.option_strings)
    return sorted({option for option in strings if option.startswith("--")})


def _case(pattern: str, words: Sequence[str] | Mapping[str, object] | Iterator[str]) -> str:
    """A branch of the script: the words where command and option have a pattern, in which `*` stands for anything."""
    quoted = "*".join(f'"{part}"' if part else "" for part in pattern.split("*"))
    return f'            {quoted}) words="{" ".join(dict.fromkeys(words))}" ;;'
