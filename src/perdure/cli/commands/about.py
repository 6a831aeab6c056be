"""`perdure version` and `perdure machines`."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from importlib import metadata

import typer

from perdure import __version__
from perdure.cli.shell.options import JsonOption
from perdure.cli.shell.output import print_json


def version(as_json: JsonOption = False) -> None:
    """Show the versions of perdure, Python, SQLite and asyncpg."""
    import apsw

    versions = {**list_versions(("asyncpg",)), "sqlite": apsw.sqlite_lib_version()}
    if as_json:
        print_json(versions)
    else:
        typer.echo(versions_line(versions))


def machines(as_json: JsonOption = False) -> None:
    """Print the state machines of rollouts, attempts and workers as mermaid charts."""
    from perdure.diagnostics.machines import MACHINES

    if as_json:
        print_json({machine.name: machine.chart() for machine in MACHINES})
    else:
        typer.echo("\n".join(f"%% {machine.name}\n{machine.chart()}" for machine in MACHINES), nl=False)


def list_versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Return the versions of perdure, Python and packages; None means not installed."""
    versions = {package: _installed(package) for package in packages}
    return {"perdure": __version__, "python": platform.python_version(), **versions}


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions_line(versions: dict[str, str | None]) -> str:
    """Format versions as one line."""
    return ", ".join(f"{name} {version or 'not installed'}" for name, version in versions.items())
