"""`perdure workflow`: workflow files; the commands on runs are in `workflow_runs`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.commands import workflow_runs
from perdure.cli.shell.ids import assistant_exists
from perdure.cli.shell.options import CommandContext, CommandGroup, JsonOption
from perdure.cli.shell.output import Output, print_json, printable

if TYPE_CHECKING:
    from perdure.workflows.loading import LoadedFile

FOLDERS = ("workflows", "crons")
"""Folders that are searched by default."""
NOTHING = """No workflow files here. Name files or folders, or put them into workflows/ and crons/:

  perdure workflow validate examples/workflows"""

app = CommandGroup("Run workflows, watch and cancel their runs, and check their files.")
workflow_runs.add_to(app)

FilesArgument = Annotated[
    list[Path] | None, typer.Argument(metavar="FILE...", exists=True, show_default=False)
]


@app.client_command("validate")
async def validate(context: CommandContext, files: FilesArgument = None) -> None:
    """Check workflow and cron files, and explain each mistake with its line.

    Without arguments, the files in workflows/ and crons/ are checked. With --url or --database, the
    assistants that phases name are looked up there. The exit code is 1 if a file is wrong.
    """
    from perdure.workflows.loading import load_file, load_folder

    places = files or [Path(name) for name in FOLDERS]
    loaded = [
        file for place in places for file in ([load_file(place)] if place.is_file() else load_folder(place))
    ]
    named = sorted({name for file in loaded for name, _ in file.assistants})
    online = context.target.is_given
    if named and online:
        async with context.connect() as connection:
            missing = {name for name in named if not await assistant_exists(connection.assistants, name)}
        loaded = [_without(file, missing) for file in loaded]
    if context.as_json:
        context.output.document({"items": [_document(file) for file in loaded]})
    elif not loaded:
        context.output.print(NOTHING)
    else:
        _report(context.output, loaded, [] if online else named)
    if any(file.problems for file in loaded) or (files and not loaded):
        raise typer.Exit(1)


def _without(loaded: LoadedFile, missing: set[str]) -> LoadedFile:
    problems = [problem for name, problem in loaded.assistants if name in missing]
    return loaded._replace(problems=[*loaded.problems, *problems])


def _document(loaded: LoadedFile) -> dict[str, Any]:
    return {
        "file": loaded.file,
        "name": None if loaded.definition is None else loaded.definition.name,
        "problems": [problem._asdict() for problem in loaded.problems],
        "warnings": [warning._asdict() for warning in loaded.warnings],
    }


def _report(output: Output, loaded: list[LoadedFile], unchecked: Sequence[str]) -> None:
    for file in loaded:
        for problem in file.problems:
            output.print(f"error: {problem}")
        for warning in file.warnings:
            output.print(f"note: {warning}")
    if unchecked:
        names = printable(", ".join(unchecked))
        output.print(f"note: --url or --database looks up the assistants that phases name: {names}")
    wrong = sum(1 for file in loaded if file.problems)
    good = len(loaded) - wrong
    valid = "1 file is valid" if good == 1 else f"{good} files are valid"
    output.print(f"{valid}, {wrong} {'has' if wrong == 1 else 'have'} mistakes.")


@app.command("schema")
def schema(as_json: JsonOption = True) -> None:
    """Print the JSON schema of workflow files, for editors."""
    from perdure.workflows.schema import json_schema

    print_json(json_schema())
