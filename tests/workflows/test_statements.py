"""Cost of the end of a phase in the database: the statements of its one transaction."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest
from tests.workflows.support import WorkflowWorld

from perdure.kernel.storage.port import Check, Engine, Operation, Tx
from perdure.kernel.storage.sqlite_tx import SqliteTx
from perdure.runs.operations.finish import finish_runs

TWO_PHASES = """
name: release
phases:
  - name: build
    type: bash
    command: make
  - name: publish
    type: bash
    command: make publish
    depends_on: [build]
"""
STATEMENTS: Final[Mapping[Engine, tuple[int, int]]] = {"postgres": (15, 13), "sqlite": (34, 28)}
"""Maximum at the end of the first phase, which starts the second, and of the last.

On PostgreSQL a statement is a round trip, and writes of several tables are sent as one. On SQLite each table
is written by a statement of its own.
"""
CALLS: Final = ("execute", "executemany", "fetch", "fetchrow")
_NAME: Final = re.compile(r"/\* (\S+) \*/")


class _CountedConnection:
    """Connection that notes the text of each statement that it sends."""

    def __init__(self, connection: Any, sent: list[str]) -> None:
        self._connection = connection
        self._sent = sent

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._connection, name)
        if name not in CALLS:
            return call

        def noted(text: str, *args: Any) -> Any:
            self._sent.append(text)
            return call(text, *args)

        return noted


class _Statements:
    """Statements of each transaction that ends attempts, without BEGIN, prelude and COMMIT.

    A bulk write on SQLite counts once, whatever its number of rows.
    """

    def __init__(self, world: WorkflowWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ends: list[list[str]] = []
        self._run = world.storage.run
        monkeypatch.setattr(world.storage, "run", self._counted)

    def _counted(
        self, operation: Operation[..., Any], *args: Any, before: Sequence[Check] = (), **options: Any
    ) -> Any:
        if operation is finish_runs:
            before = [self._count, *before]
        return self._run(operation, *args, before=before, **options)

    async def _count(self, tx: Tx) -> None:
        self.ends.append([])
        name = "connection" if isinstance(tx, SqliteTx) else "_connection"
        setattr(tx, name, _CountedConnection(getattr(tx, name), self.ends[-1]))


def _names(text: str) -> str:
    """Return the names of the statements in a text, or the text."""
    return ", ".join(_NAME.findall(text)) or " ".join(text.split())


async def test_the_end_of_a_phase_takes_few_statements(
    world: WorkflowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await world.start(TWO_PHASES)
    statements = _Statements(world, monkeypatch)
    await world.work()
    assert (await world.workflows.get(run_id)).status == "succeeded"
    sent = [[_names(text) for text in end] for end in statements.ends]
    print("\n".join(f"{number}. {name}" for end in sent for number, name in enumerate(end, 1)))
    for end, most in zip(sent, STATEMENTS[world.storage.engine], strict=True):
        assert len(end) <= most, end
    locks = [name for end in sent for name in end if name == "workflows.LOCK_RUNS"]
    assert len(locks) == len(sent)
