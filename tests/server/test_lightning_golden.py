"""Our protocol compared with recorded answers of `agentlightning`."""

import asyncio
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.server.lightning_cases import CASES, play
from tests.server.support import serving

from perdure import InMemoryLightningStore
from perdure.server.lightning.routes import ROUTES

GOLDEN: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("lightning_golden.json").read_text("utf-8")
)


class Wanted(NamedTuple):
    """An answer that intentionally differs from the recorded one."""

    status: int
    detail: Any
    reason: str


FINAL = "clients repeat a 500 for eight seconds; a 400 says at once what is wrong"
DIFFERENCES = {
    "get an unknown rollout": Wanted(200, None, "there is no such rollout, which is no failure"),
    "update an unknown rollout": Wanted(400, "Rollout ro-unknown not found: Item does not exist", FINAL),
    "update an unknown attempt": Wanted(400, "Attempt at-unknown not found for rollout <ro-1>", FINAL),
    "start an attempt at an unknown rollout": Wanted(400, "Rollout ro-unknown not found", FINAL),
    "add a span of an unknown rollout": Wanted(400, "Rollout ro-unknown not found", FINAL),
    "add a span of an unknown attempt": Wanted(400, "Attempt at-unknown not found for rollout <ro-1>", FINAL),
    "an unknown path": Wanted(404, "No route has this path.", "the words are ours"),
    "a wrong method": Wanted(405, "this path takes GET, POST, not DELETE", "the words are ours"),
}
SCHEMA_DIFFERENCES = {
    "start with no attempts allowed": ("value_error", ["body", "config", "max_attempts"]),
    "enqueue what is no JSON": ("json_invalid", ["body"]),
    "add resources that lack a field": ("missing", ["body", "x"]),
}
"""Differences in the place or name of the same refusal; programs do not read this detail."""


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    return asyncio.run(_play())


async def _play() -> dict[str, dict[str, Any]]:
    async with InMemoryLightningStore() as store, serving(store, ROUTES) as visitor:
        return await asyncio.to_thread(play, visitor.url)


@pytest.mark.parametrize("name", [case.name for case in CASES if case.name not in DIFFERENCES])
def test_it_answers_as_recorded(name: str, answers: dict[str, dict[str, Any]]) -> None:
    golden, ours = GOLDEN[name], answers[name]
    assert ours["status"] == golden["status"], ours
    if golden["status"] == 422:
        assert _first(ours) == SCHEMA_DIFFERENCES.get(name, _first(golden))
        assert ours["body"]["code"] == "bad_body"
    elif golden["status"] == 400:
        assert ours["body"]["detail"] == golden["body"]["detail"]
    else:
        assert _comparable(name, ours["body"]) == _comparable(name, golden["body"])


@pytest.mark.parametrize("name", DIFFERENCES)
def test_it_differs_where_it_means_to(name: str, answers: dict[str, dict[str, Any]]) -> None:
    wanted, ours = DIFFERENCES[name], answers[name]
    assert ours["status"] == wanted.status != GOLDEN[name]["status"] or wanted.status in (404, 405)
    detail = ours["body"]["detail"] if isinstance(ours["body"], dict) else ours["body"]
    assert detail == wanted.detail


def test_every_case_was_recorded() -> None:
    assert sorted(GOLDEN) == sorted(case.name for case in CASES)


def test_no_answer_tells_of_the_inside(answers: dict[str, dict[str, Any]]) -> None:
    text = json.dumps(answers)
    assert "Traceback" not in text
    assert all(answer["status"] < 500 for answer in answers.values())


def _first(answer: dict[str, Any]) -> tuple[str, list[Any]]:
    """Return the part of a schema error that programs may read; its text is for people."""
    found = answer["body"]["detail"][0]
    return found["type"], found["loc"]


def _comparable(name: str, body: Any) -> Any:
    if name.startswith("start an attempt"):
        # A continuing rollout has not ended, though theirs keeps the end time.
        return {**body, "end_time": None}
    if name == "wait for one that has ended":
        # Ours includes the attempt; theirs strips it.
        return [{key: value for key, value in each.items() if key != "attempt"} for each in body]
    return body
