"""What is deleted because of its age, by policy, in chunks, and never what is open; and how much there is."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import msgspec
import pytest
from tests.retention.support import NEW_KINDS
from tests.server.native.support import Worker, request

from perdure.jobs.model import JobContext
from perdure.kernel.config import Settings, load_settings
from perdure.kernel.retention import DAY, Retention
from perdure.kernel.storage.dialect import Statement, statement
from perdure.kernel.storage.port import Tx
from perdure.outbox.model import DeliveryOutcome, Retries
from perdure.outbox.operations import NewEffect, claim_due, put, settle
from perdure.retention.service import RETENTION_JOB, Upkeep
from perdure.runtime.app import App
from perdure.runtime.components import build_components, running
from perdure.runtime.services import Services
from perdure.runtime.stores import open_store
from perdure.service.callers import Caller
from perdure.streams.model import NewEvent
from perdure.streams.operations import StreamAppend, append

KEPT = ("audit", "keys", "delivered", "dead", "jobs", "statistics", "usage", "temporary")
KINDS = (*KEPT, "removed", *NEW_KINDS)
OLDER = (
    statement("UPDATE outbox SET ended_at = ended_at - :age"),
    statement("UPDATE audit SET id = id - :age"),
    statement("UPDATE idempotency SET time = time - :age"),
    statement("UPDATE threads SET gone_at = gone_at - :age WHERE gone_at IS NOT NULL"),
    statement("UPDATE runs SET gone_at = gone_at - :age WHERE gone_at IS NOT NULL"),
)


async def _age(tx: Tx, days: float) -> None:
    for older in OLDER:
        await tx.execute(older, age=int(days * DAY * 1_000_000))


@pytest.fixture
async def services(engine_url: str) -> AsyncIterator[Services]:
    store = open_store(engine_url, watchdog_interval=None)
    found = Services(store, Settings())
    yield found.acting_as(Caller.trusted("anna"))
    await found.close()


async def _fill(services: Services) -> None:
    """An audit entry and a key, a delivered and a dead effect, a removed thread, and a thread in use."""
    ns = await services.threads.ns("write")
    effects = [NewEffect("consumer", "s", "{}")] * 3
    delivered, dead, _ = await services.storage.run(put, effects, ns=ns)
    await services.storage.run(claim_due, "consumer", 3, 60.0, Retries())
    ends = [DeliveryOutcome(delivered, 1, "delivered"), DeliveryOutcome(dead, 1, "refused")]
    await services.storage.run(settle, ends, Retries(), ns=ns)
    await services.threads.create_thread("kept", idempotency_key=uuid.uuid4().hex)
    await services.threads.create_thread("gone")
    await Worker(services.run_queue).register()
    await services.threads.create_run(request(thread_id="kept"))
    await services.threads.delete_thread("gone")


def _deleted(report: object) -> dict[str, int]:
    return {each.kind: each.deleted for each in report.items}  # type: ignore[attr-defined]


async def test_each_kind_of_data_is_kept_for_its_time(services: Services) -> None:
    await _fill(services)
    upkeep = services.upkeep
    nothing = dict.fromkeys(KINDS, 0)
    assert _deleted(await upkeep.gc()) == nothing
    await services.storage.run(_age, 2.0)
    counted = _deleted(await upkeep.gc(dry_run=True))
    assert counted == {**nothing, "keys": 1, "removed": 1}
    assert _deleted(await upkeep.gc(dry_run=True)) == counted, "a dry run deletes nothing"
    assert _deleted(await upkeep.gc()) == counted
    await services.storage.run(_age, 6.0)
    assert _deleted(await upkeep.gc()) == {**nothing, "delivered": 1}
    await services.storage.run(_age, 23.0)
    assert _deleted(await upkeep.gc()) == {**nothing, "dead": 1}
    await services.storage.run(_age, 61.0)
    swept = _deleted(await upkeep.gc())
    assert swept["audit"] > 0
    assert {**swept, "audit": 0} == nothing
    stats = {each.kind: each.rows for each in (await upkeep.stats()).items}
    assert (stats["threads"], stats["runs"], stats["outbox"], stats["keys"]) == (1, 1, 1, 0)
    assert (await services.threads.get_thread("kept")).status == "busy"


async def test_what_is_kept_for_ever_stays(services: Services) -> None:
    await _fill(services)
    await services.storage.run(_age, 30_000.0)
    forever = msgspec.convert(dict.fromkeys(KEPT), Retention)
    report = await Upkeep(services.storage, retention=forever).gc()
    assert _deleted(report) == {**dict.fromkeys(KINDS, 0), "removed": 1}
    assert {each.kind for each in report.items if each.days is None} == {*KEPT, *NEW_KINDS}


async def test_the_size_of_a_database(services: Services) -> None:
    await services.threads.create_thread(values={"n": 1})
    found = await services.upkeep.stats()
    assert found.bytes > 0
    rows = {each.kind: each.rows for each in found.items}
    assert (rows["threads"], rows["checkpoints"]) == (1, 1)
    await services.sessions.append("s1", [{"type": "user"}])
    rows = {each.kind: each.rows for each in (await services.upkeep.stats()).items}
    assert rows["sessions"] == 1
    kinds = list(rows)
    assert kinds[kinds.index("schedules") + 1 :][:3] == ["workflow_runs", "executions", "approvals"]
    assert found.engine in ("sqlite", "postgres")


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (None, []),
        ("UPDATE stream_events SET count = 2 WHERE seq = 1", ["stream_gaps"]),
        ("UPDATE stream_events SET count = 3 WHERE seq = 4", ["stream_ends"]),
    ],
)
async def test_events_that_share_a_row_are_counted(
    services: Services, damage: str | None, expected: list[str]
) -> None:
    ns = await services.threads.ns("write")
    for count in (3, 2):
        events = [NewEvent("custom", "1")] * count
        await services.storage.run(append, [StreamAppend("a", events)], ns=ns)
    rows = {each.kind: each.rows for each in (await services.upkeep.stats()).items}
    assert rows["stream_events"] == 5
    if damage is not None:
        await services.storage.run(_damage, statement(damage), ns=ns)
    found = await services.upkeep.verify()
    assert [each.check for each in found.items if not each.ok] == expected


async def _damage(tx: Tx, sql: Statement[None]) -> None:
    assert await tx.execute(sql) == 1


async def test_the_scheduler_runs_it(engine_url: str) -> None:
    async with open_store(engine_url) as store:
        app = App(store, Settings())
        async with running(build_components(app, files=False)):
            jobs = {job.job_name: job for job in (await app.services.schedules.status()).jobs}
            assert jobs[RETENTION_JOB].origin == "code"
            assert jobs[RETENTION_JOB].target == "job"
            spec = app.services.job_registry[RETENTION_JOB]
            context = JobContext(
                storage=store.storage, ns=1, namespace="default", job_id="j", name="n", key=None, attempt=1
            )
            assert await spec.function(context, {}) == {}


def test_settings_count_in_days(tmp_path: object) -> None:
    environment = {"PERDURE_RETENTION_AUDIT": "off", "PERDURE_RETENTION_DEAD": "0.5"}
    settings = load_settings({}, environment=environment, directory=str(tmp_path))
    assert Retention.of(settings) == Retention(audit=None, dead=DAY / 2)
    assert Retention.of(Settings()) == Retention()
