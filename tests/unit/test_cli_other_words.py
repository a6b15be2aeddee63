"""What is typed instead of a command: each hint names commands and options that exist."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from fray.cli import cli
from fray.cli.other_words import OF_OTHERS, meaning

COMMANDS = cli.list_commands(click.Context(cli))


@pytest.mark.parametrize("word", OF_OTHERS)
def test_a_word_of_another_system_is_no_command_and_its_hint_names_real_ones(word: str) -> None:
    assert word not in COMMANDS
    typed = re.findall("`fray ([^`]*)`", OF_OTHERS[word])
    assert typed or "create_actor" in OF_OTHERS[word] or "fray.yaml" in OF_OTHERS[word] or "bucket" in OF_OTHERS[word]
    for name, *others in map(shlex.split, typed):
        if name.startswith("--"):
            continue
        command = cli.get_command(click.Context(cli), name)
        assert command is not None, name
        if isinstance(command, click.Group) and others:
            command = command.commands[others.pop(0)]
        known = {option for part in command.params for option in part.opts}
        ours = others[: others.index("--")] if "--" in others else others
        assert {each for each in ours if each.startswith("-")} <= known, typed


def test_a_misspelling_is_told_from_another_word() -> None:
    assert meaning("sumbit", COMMANDS) == "did you mean `fray submit`?"
    assert meaning("lauch", COMMANDS).startswith("there is no 'launch' either; `fray run -- COMMAND`")
    assert meaning("psuh", ["push", "pop"], "queue") == "did you mean `fray queue push`?"
    assert meaning("list", ["set", "ls"], "pool") == "the commands of `fray pool` are set, ls"
