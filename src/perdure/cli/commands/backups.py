"""`perdure db backup`, `restore` and `verify`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.shell.options import CommandContext, confirm, flag

if TYPE_CHECKING:
    from perdure.retention.records import Verification
    from perdure.runtime.backups import Backup


async def backup(
    context: CommandContext,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="New file (default: perdure-TIME.backup here).")
    ] = None,
    overwrite: Annotated[bool, flag("--overwrite", help="Replace FILE if it exists.")] = False,
) -> None:
    """Back up a database and its session logs into one file, while servers and workers go on."""
    from perdure.kernel.config import load_settings
    from perdure.runtime.backups import make_backup

    database = await get_database_url(context)
    target = file or Path(f"perdure-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}.backup")
    if target.exists() and not overwrite:
        raise typer.BadParameter(f"{target} exists; choose another name, or add --overwrite")
    with _Progress(context) as progress:
        created = await make_backup(database, target, load_settings(), progress.show)
    context.answer(
        created, f"Backed up to {created.path} ({_size(created)}). Check it: perdure db verify {target}"
    )


async def restore(
    context: CommandContext,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Backup to restore.")],
    yes: Annotated[bool, flag("--yes", "-y", help="Replace what the database holds; do not ask.")] = False,
) -> None:
    """Restore a backup into the database given by --database; a file that it replaces is kept.

    The database must not be in use.
    """
    from perdure.kernel.config import load_settings, mask_url
    from perdure.runtime.backups import describe, holds_data, refuse_live, restore_backup

    if context.target.database is None:
        raise typer.BadParameter(
            "name the database to restore to with --database, such as sqlite:///perdure.db"
        )
    database = context.target.database
    backup = describe(file)
    refuse_live(database)
    if await holds_data(database) and not yes:
        moment = datetime.fromtimestamp(backup.created_at, UTC).isoformat(timespec="seconds")
        confirm(f"Replace everything in {mask_url(database)} by the backup of {moment}?")
    done = await restore_backup(file, database, load_settings())
    kept = f" What was there is kept: {', '.join(done.kept)}." if done.kept else ""
    context.answer(done, f"Restored {done.database} from {file} (made by perdure {backup.version}).{kept}")


async def verify(
    context: CommandContext,
    file: Annotated[
        Path | None, typer.Argument(metavar="BACKUP", help="Backup to check instead of a database.")
    ] = None,
) -> None:
    """Check the integrity of a database or a backup (exit code 1 if something is wrong)."""
    if file is not None:
        verification = await _verify_backup(context, file)
    else:
        async with context.connect() as connection:
            verification = await connection.upkeep.verify()
    if context.as_json:
        context.output.document(verification)
    else:
        rows = [(item.check, "ok" if item.ok else item.sentence) for item in verification.items]
        context.output.table(("check", "result"), rows)
    if not verification.ok:
        raise typer.Exit(1)


async def _verify_backup(context: CommandContext, file: Path) -> Verification:
    """Verify a copy of a backup, opened as a database."""
    from tempfile import TemporaryDirectory

    from perdure.cli.shell.target import CommandTarget
    from perdure.kernel.config import load_settings
    from perdure.runtime.backups import restore_backup

    with TemporaryDirectory() as folder:
        copy = str(Path(folder, "copy.db"))
        await restore_backup(file, copy, load_settings({"state_dir": folder}))
        async with CommandTarget(database=copy).open() as connection:
            return await connection.upkeep.verify()


async def get_database_url(context: CommandContext) -> str:
    """Return the database of --database, or of the server if its database is on this machine."""
    if context.target.database is not None:
        return context.target.database
    from perdure.kernel.config import load_settings
    from perdure.kernel.errors import InvalidInput, Unreachable
    from perdure.runtime.backups import is_here

    try:
        async with context.connect() as connection:
            stats = await connection.upkeep.stats()
    except Unreachable as error:
        named = "name the database with --database, such as sqlite:///perdure.db"
        raise Unreachable(f"{error.message}; where no server runs, {named}") from None
    if stats.engine == "sqlite" and is_here(stats.database):
        return stats.database
    configured = str(load_settings().database_url)
    if stats.engine == "postgres" and configured.startswith(("postgresql://", "postgres://")):
        return configured
    raise InvalidInput(
        "the server's database is not on this machine: run this there, or name it with --database"
    )


def _size(backup: Backup) -> str:
    files = f", {backup.session_files} files of session logs" if backup.session_files else ""
    return f"{backup.bytes / 1e6:.1f} MB{files}"


class _Progress:
    """Progress of a backup on a terminal."""

    def __init__(self, context: CommandContext) -> None:
        self._shown = context.output.console.is_terminal and not context.as_json
        self._console = context.output.console
        self._last = ""

    def __enter__(self) -> _Progress:
        return self

    def show(self, done: int, total: int) -> None:
        text = f"{done * 100 // total} %" if total else f"{done} rows"
        if self._shown and text != self._last:
            self._console.print(text, end="\r")
            self._last = text

    def __exit__(self, *_: object) -> None:
        if self._last:
            self._console.print(" " * len(self._last), end="\r")
