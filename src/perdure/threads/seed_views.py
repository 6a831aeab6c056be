"""The views `run` and `thread`: runs and threads in the columns that LangGraph's server has on PostgreSQL."""

from __future__ import annotations

from typing import Final

from perdure.kernel.storage.ddl import iso_time, sql_cases
from perdure.kernel.storage.schema import View
from perdure.threads.model import OF_PHASES, run_status, run_statuses

_STATUS: Final = sql_cases(
    "o.status || ' ' || coalesce(o.outcome, '')",
    {" ".join(pair): name for pair, name in run_statuses().items()},
    sql_cases("o.status", {status: run_status(status, None) for status, _ in run_statuses()}),
)


def _times(engine: str, table: str) -> list[str]:
    return [
        iso_time(table + "." + name, engine, text=engine == "sqlite") + " AS " + name
        for name in ("created_at", "updated_at")
    ]


def _build_query(columns: list[str], source: str, table: str) -> str:
    """Build the query for the rows of all namespaces, except phases of workflows."""
    names = ", ".join([*columns, "s.name AS namespace"])
    of_phases = "coalesce(" + table + ".temporary, 0) <> " + str(OF_PHASES)
    return " ".join(
        ["SELECT", names, source, "JOIN namespaces AS s ON s.id =", table + ".ns WHERE", of_phases]
    )


def _run(engine: str) -> str:
    columns = ["r.id AS run_id", "r.thread_id", "r.assistant_id", *_times(engine, "r")]
    columns += ["o.metadata", _STATUS + " AS status", "o.input AS kwargs", "r.strategy AS multitask_strategy"]
    return _build_query(columns, "FROM runs AS r JOIN rollouts AS o ON o.ns = r.ns AND o.id = r.id", "r")


def _thread(engine: str) -> str:
    columns = ["t.id AS thread_id", *_times(engine, "t"), "t.metadata", "t.status", "t.config", "t.error"]
    return _build_query(columns, "FROM threads AS t", "t")


RUN_VIEW: Final = View("run", sqlite=_run("sqlite"), postgres=_run("postgres"))
THREAD_VIEW: Final = View("thread", sqlite=_thread("sqlite"), postgres=_thread("postgres"))
