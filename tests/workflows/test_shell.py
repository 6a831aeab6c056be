"""Values in commands stay data: a real shell executes the results."""

from __future__ import annotations

import os
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.kernel.errors import InvalidInput, TooLarge
from perdure.workflows import templates
from perdure.workflows.shell import shell_command

HOSTILE = "'; echo pwned; \" $(echo pwned) `echo pwned` ${HOME} \\ {{scratch.secret}} & | > x\n# *"
PLACES = [
    "printf %s {{v}}",
    "printf %s '{{v}}'",
    'printf %s "{{v}}"',
    "printf %s ''\"{{v}}\"",
    "# don't stumble over this\nprintf %s {{v}}",
    "true && printf '%s' {{v}} # it's over",
    "cat <<END | head -c -1\n{{v}}\nEND",
    'printf %s "$(printf %s "{{v}}"; printf .)" | head -c -1',
]


def run(text: str, value: object) -> str:
    command = shell_command(templates.parse(text), {"v": value})
    done = subprocess.run(
        ["bash", "-c", command.text],
        env={"PATH": os.environ["PATH"], **command.env},
        capture_output=True,
        timeout=20,
        check=True,
    )
    return done.stdout.decode()


@pytest.mark.parametrize("text", PLACES)
def test_a_hostile_value_comes_out_as_it_went_in(text: str) -> None:
    assert run(text, HOSTILE) in (HOSTILE, " ".join(HOSTILE.split()))


@settings(max_examples=25)
@given(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=40))
def test_any_value_comes_out_as_it_went_in(value: str) -> None:
    assert run("printf '%s|%s|%s' {{v}} \"{{v}}\" 'x{{v}}x'", value) == f"{value}|{value}|x{value}x"


def test_a_command_that_is_given_runs_only_where_it_is_asked_for() -> None:
    assert run('sh -c "{{v}}"', "printf hello") == "hello"


def test_parts_and_numbers_are_put_in() -> None:
    assert run("{{#if v}}printf {{v}}{{/if}}{{#if !v}}printf none{{/if}}", 7) == "7"
    assert run("{{#if v}}printf {{v}}{{/if}}{{#if !v}}printf none{{/if}}", 0) == "none"
    assert run("printf %s {{slugify v}}", "Fix the Bug!") == "fix-the-bug"


def test_a_quoted_here_document_and_an_enormous_value_are_refused() -> None:
    with pytest.raises(InvalidInput, match="here-document"):
        shell_command(templates.parse("cat <<'END'\n{{v}}\nEND"), {"v": "x"})
    with pytest.raises(TooLarge):
        shell_command(templates.parse("echo {{v}}"), {"v": "x" * 200_000})
