"""`perdure demo`: its options and its command."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.shell.options import JsonOption, NoColorOption, number, text

RolloutsOption = Annotated[int, number("Number of rollouts in the demo.", min=1, max=10_000)]
SeedOption = Annotated[int, number("Random seed: another seed, other failures.")]


def demo(
    database: Annotated[
        str | None,
        text(
            "URL", "Database: sqlite:///file, postgresql://… or memory: (default: a new file).", "--database"
        ),
    ] = None,
    rollouts: RolloutsOption = 24,
    seed: SeedOption = 11,
    as_json: JsonOption = False,
    no_color: NoColorOption = False,
) -> None:
    """Run a demo: two workers, failures, a lost heartbeat, retries and a trace."""
    from perdure.cli.demo.play import run

    try:
        run(database, rollouts, seed, as_json=as_json, no_color=no_color)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
