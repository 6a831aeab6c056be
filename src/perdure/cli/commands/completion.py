"""`perdure completion`: the completion of commands, options, IDs and names in a shell."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.shell.options import JsonOption, parse_choice
from perdure.cli.shell.output import print_json

SHELLS = ("bash", "zsh", "fish")


def completion(
    shell: Annotated[
        str,
        typer.Argument(metavar="SHELL", help="bash, zsh or fish.", autocompletion=lambda: list(SHELLS)),
    ],
    as_json: JsonOption = False,
) -> None:
    """Print the script that lets a shell complete commands, options, IDs and names.

    For bash: `eval "$(perdure completion bash)"` in ~/.bashrc. For zsh the same in ~/.zshrc, after compinit.
    For fish: `perdure completion fish | source` in ~/.config/fish/config.fish. IDs and names come from the
    server of PERDURE_URL.
    """
    from typer._completion_shared import get_completion_script

    chosen = parse_choice(shell, SHELLS, "SHELL")
    script = get_completion_script(prog_name="perdure", complete_var="_PERDURE_COMPLETE", shell=chosen)
    if as_json:
        print_json({"shell": chosen, "script": script})
    else:
        typer.echo(script)
