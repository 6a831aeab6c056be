"""Every statement on graph checkpoints finds its rows by an index, on both engines."""

from __future__ import annotations

from typing import Any

from tests.checkpoints.support import changes, checkpoint, grown, whole, write
from tests.support.plans import of_postgres, of_sqlite

from perdure.checkpoints import sql
from perdure.checkpoints.service import StoredCheckpoints
from perdure.kernel.storage.dialect import Statement
from perdure.kernel.storage.port import Tx

VALUES: dict[str, Any] = {
    "thread_id": "t1",
    "thread_ids": ["t1", "t2"],
    "checkpoint_ns": "",
    "namespaces": [""],
    "pieces": ["1 list", "2 list"],
    "ids": ["c0001", "c0002"],
    "id": "c0005",
    "run_ids": ["run 1", "run 2"],
    "log": "a",
    "start": 1,
    "stop": 5,
    "positions": [1, 2],
    "depth": 10,
    "source": "t1",
    "target": "copy",
    "ns": 1,
}
TABLES = {
    "graph_threads",
    "graph_checkpoints",
    "graph_pieces",
    "graph_items",
    "graph_writes",
    "c",
    "p",
    "i",
    "b",
}


def _statements() -> dict[str, Statement[Any]]:
    found: dict[str, Statement[Any]] = {}
    for name, value in vars(sql).items():
        if isinstance(value, Statement):
            found[name] = value
    return found


async def _explain(tx: Tx, statement: Statement[Any], engine: str) -> tuple[set[str], set[str]]:
    """Return the indexes that a statement uses, and the tables that it scans."""
    asked: Statement[Any] = Statement(
        "EXPLAIN QUERY PLAN " + statement.sqlite,
        "EXPLAIN (FORMAT JSON) " + statement.postgres,
        statement.names,
        statement.lists,
    )
    rows = await tx.all(asked, **{name: VALUES[name] for name in statement.names})
    if engine == "postgres":
        plan = of_postgres(rows[0][0])
        return set(plan.indexes), {"a table"} if "Seq Scan" in plan.text else set()
    plan = of_sqlite([row[3] for row in rows])
    return set(plan.indexes), set(plan.scanned) & TABLES


async def test_every_statement_goes_by_its_index(graphs: StoredCheckpoints) -> None:
    for thread in range(5):
        puts = [
            checkpoint(
                number,
                grown(str(number), None, 0, "item"),
                whole("a", str(number), number),
                thread_id=f"t{thread}",
                run_id=f"run {number}",
            )
            for number in range(40)
        ]
        writes = [write(number, "task", 0, 1, thread_id=f"t{thread}") for number in range(40)]
        await graphs.put(changes(*puts, writes=writes))
    ns, engine = await graphs.ns("write"), graphs.storage.engine
    for name, statement in _statements().items():
        indexes, scanned = await graphs.storage.run(_explain, statement, engine, ns=ns)
        assert (name, scanned) == (name, set())
        assert any(index.startswith("graph_") for index in indexes), name
