"""`perdure workflow`: workflow files; the commands on runs are in `workflow_runs`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.commands import workflow_runs
from perdure.cli.shell.options import CommandGroup, JsonOption, NoColorOption
from perdure.cli.shell.output import Output, print_json

if TYPE_CHECKING:
    from perdure.workflows.loading import Loaded

FOLDERS = ("workflows", "crons")
"""Where files are looked for if none is named."""
NOTHING = """No workflow files here. Name files or folders, or put them into workflows/ and crons/:

  perdure workflow validate examples/workflows"""

app = CommandGroup("Run workflows, watch and cancel their runs, and check their files.")
workflow_runs.add_to(app)

FilesArgument = Annotated[
    list[Path] | None, typer.Argument(metavar="[FILE OR FOLDER]...", exists=True, show_default=False)
]


@app.command("validate")
def validate(
    files: FilesArgument = None, as_json: JsonOption = False, no_color: NoColorOption = False
) -> None:
    """Check workflow and cron files, and explain each mistake with its line.

    Without arguments, the files in workflows/ and crons/ are checked. The exit code is 1 if one is wrong.
    """
    from perdure.workflows.loading import load_file, load_folder

    output = Output(as_json=as_json, no_color=no_color)
    places = files or [Path(name) for name in FOLDERS]
    loaded = [
        each for place in places for each in ([load_file(place)] if place.is_file() else load_folder(place))
    ]
    if as_json:
        output.document({"items": [_document(each) for each in loaded]})
    elif not loaded:
        output.print(NOTHING)
    else:
        _report(output, loaded)
    if any(each.problems for each in loaded) or (files and not loaded):
        raise typer.Exit(1)


def _document(loaded: Loaded) -> dict[str, Any]:
    return {
        "file": loaded.file,
        "name": None if loaded.definition is None else loaded.definition.name,
        "problems": [each._asdict() for each in loaded.problems],
        "warnings": [each._asdict() for each in loaded.warnings],
    }


def _report(output: Output, loaded: list[Loaded]) -> None:
    for each in loaded:
        for problem in each.problems:
            output.print(f"error: {problem}")
        for warning in each.warnings:
            output.print(f"note: {warning}")
    wrong = sum(1 for each in loaded if each.problems)
    good = len(loaded) - wrong
    valid = "1 file is valid" if good == 1 else f"{good} files are valid"
    output.print(f"{valid}, {wrong} {'has' if wrong == 1 else 'have'} mistakes.")


@app.command("schema")
def schema(as_json: JsonOption = True) -> None:
    """Print the JSON schema of workflow files, for editors."""
    import msgspec

    from perdure.workflows.definition import Cron, Workflow

    (one, other), components = msgspec.json.schema_components((Workflow, Cron), ref_template="#/$defs/{name}")
    dialect = "https://json-schema.org/draft/2020-12/schema"
    print_json({"$schema": dialect, "anyOf": [one, other], "$defs": components})
