"""The Grafana board and the alert rules name only metrics and labels that a server has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.server.local_server import serving_locally

from perdure import Agents, Context, PostgresLightningStore
from perdure.jobs.model import JobContext
from perdure.kernel.config import Settings
from perdure.runtime.app import App
from perdure.runtime.components import build_components, running
from perdure.server.table import build_application
from perdure.threads.records import RunRequest

DEPLOY = Path(__file__).resolve().parent.parent.parent / "deploy"
TARGET_LABELS = {"instance", "job"}
"""Labels that Prometheus adds to each series."""
METRIC = re.compile(r"\b((?:perdure|process)_\w+)(\{[^}]*\})?")
GROUPING = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")
MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")


def board_expressions() -> Iterator[str]:
    board = json.loads((DEPLOY / "grafana" / "perdure.json").read_text())
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.findall(r"\w+", variable["query"]["query"])[-2:]
            yield f"sum by ({label}) ({metric})"


def rule_expressions() -> Iterator[str]:
    for group in yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
            assert set(rule["annotations"]) == {"summary", "description"}
            yield rule["expr"]


async def test_boards_and_rules_name_what_a_server_measures(
    database_url: str, redis_url: str, redis_prefix: str, tmp_path: Path
) -> None:
    agents = Agents()

    @agents.agent("echo")
    async def echo(ctx: Context, input: object) -> object:
        return input

    settings = Settings(
        database_url=database_url, backup_schedule="0 3 * * *", backup_dir=str(tmp_path), stats_interval=3600
    )
    store = PostgresLightningStore(database_url, redis_url=redis_url, redis_key_prefix=redis_prefix)
    async with store:
        app = App(store, settings)
        async with running(build_components(app, agents)), serving_locally(build_application(app)) as url:
            run = await app.services.threads.create_run(RunRequest(assistant_id="echo", input={"a": 1}))
            await app.services.threads.join_run(run.run_id, timeout=30)
            context = JobContext(
                storage=store.storage, ns=1, namespace="default", job_id="j", name="x", key=None, attempt=1
            )
            await app.services.upkeep.sweep(context, {})
            assert app.backup is not None
            await app.backup.run(context, {})
            await store.enqueue_rollout("waits")
            app.metrics.count_spans("json", 1, 2)
            async with aiohttp.ClientSession() as session:
                await (await session.get(url + "/healthz")).read()
                text = await (await session.get(url + "/metrics")).text()
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    assert 'perdure_runs_total{status="success"} 1.0' in text
    assert {"perdure_queue_wait_seconds_bucket", "perdure_lease_lost_total", "perdure_redis_up"} <= set(
        labels
    )
    for expression in (*board_expressions(), *rule_expressions()):
        named = METRIC.findall(expression)
        assert named or expression.startswith("up{"), expression
        known = set(TARGET_LABELS)
        for metric, matchers in named:
            assert metric in labels, f"{metric} in {expression}"
            known |= labels[metric]
            assert set(MATCHER.findall(matchers)) <= labels[metric] | TARGET_LABELS, expression
        for group in GROUPING.findall(expression):
            assert set(re.findall(r"\w+", group)) <= known, expression
