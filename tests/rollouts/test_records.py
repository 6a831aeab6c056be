"""Rollouts, attempts, workers and requests: construction, behaviour and refusals."""

from __future__ import annotations

import copy
import math
import pickle
from types import MappingProxyType
from typing import Any

import pytest

from perdure.kernel.codec import MAX_DEPTH, decode_json, encode_json
from perdure.kernel.errors import InvalidInput
from perdure.kernel.record import Record
from perdure.rollouts import records
from perdure.rollouts.records import (
    UNSET,
    Attempt,
    AttemptedRollout,
    EnqueueRolloutRequest,
    PaginatedResult,
    Rollout,
    RolloutConfig,
    Unset,
    Worker,
    is_finished,
    is_queuing,
    is_running,
)
from perdure.rollouts.resources import LLM, PromptTemplate, ProxyLLM, ResourcesUpdate
from perdure.spans.records import TraceStatus


def rollout(**fields: Any) -> Rollout:
    given: dict[str, Any] = {"rollout_id": "ro-1", "input": {"q": 1}, "start_time": 1.0}
    return Rollout(**given | fields)


def attempt(**fields: Any) -> Attempt:
    given: dict[str, Any] = {"rollout_id": "ro-1", "attempt_id": "at-1", "sequence_id": 1, "start_time": 2.0}
    return Attempt(**given | fields)


EVERY_RECORD = [
    RolloutConfig(timeout_seconds=1, retry_condition=["failed"]),
    rollout(metadata={"a": None}),
    attempt(),
    AttemptedRollout(rollout_id="ro-1", input=None, start_time=1.0, attempt=attempt()),
    EnqueueRolloutRequest(input=[1], config=RolloutConfig(max_attempts=2)),
    Worker(worker_id="w"),
    LLM(endpoint="http://x", model="m", api_key="k"),
    ProxyLLM(endpoint="http://x", model="m"),
    PromptTemplate(template="{a}", engine="f-string"),
    ResourcesUpdate(
        resources_id="rs-1",
        create_time=1.0,
        update_time=2.0,
        version=1,
        resources={"llm": ProxyLLM(endpoint="e", model="m"), "p": PromptTemplate(template="", engine="poml")},
    ),
]


def test_defaults() -> None:
    assert rollout().model_dump() == {
        "rollout_id": "ro-1",
        "input": {"q": 1},
        "start_time": 1.0,
        "end_time": None,
        "mode": None,
        "resources_id": None,
        "status": "queuing",
        "config": {
            "timeout_seconds": None,
            "unresponsive_seconds": None,
            "max_attempts": 1,
            "retry_condition": [],
        },
        "metadata": None,
    }
    assert attempt().model_dump() == {
        "rollout_id": "ro-1",
        "attempt_id": "at-1",
        "sequence_id": 1,
        "start_time": 2.0,
        "end_time": None,
        "status": "preparing",
        "worker_id": None,
        "last_heartbeat_time": None,
        "metadata": None,
    }
    assert Worker(worker_id="w").model_dump(exclude_none=True) == {"worker_id": "w", "status": "unknown"}
    assert EnqueueRolloutRequest(input=1).model_dump(exclude_none=True) == {
        "input": 1,
        "queue": "default",
        "priority": 0,
    }


@pytest.mark.parametrize("record", EVERY_RECORD, ids=lambda record: type(record).__name__)
def test_every_record_survives_every_passage(record: Record) -> None:
    kind = type(record)
    assert kind.model_validate(record) is record
    for same in (
        kind.model_validate(record.model_dump()),
        kind.model_validate(MappingProxyType(record.model_dump())),
        kind.model_validate(record.model_dump(mode="json")),
        kind.model_validate_json(record.model_dump_json()),
        kind.model_validate_json(record.model_dump_json(indent=2).encode()),
        kind.model_validate(decode_json(encode_json(record))),
        pickle.loads(pickle.dumps(record)),
        copy.copy(record),
        copy.deepcopy(record),
        record.model_copy(),
        record.model_copy(deep=True),
    ):
        assert same == record
        assert type(same) is kind
        assert same is not record
    assert repr(record).startswith(f"{kind.__name__}(")
    assert record != object()


def test_records_are_mutable_and_unequal_when_they_differ() -> None:
    one, other = rollout(), rollout()
    other.status = "running"
    assert one != other
    assert one != AttemptedRollout(**one.model_dump(), attempt=attempt())


def test_copies_share_or_do_not() -> None:
    original = rollout()
    assert original.model_copy().input is original.input
    deep = original.model_copy(update={"status": "failed"}, deep=True)
    assert deep.status == "failed"
    assert deep.input == original.input
    assert deep.input is not original.input
    with pytest.raises(InvalidInput, match="Rollout has no field 'nope'"):
        original.model_copy(update={"nope": 1})


def test_dumping_chooses_fields() -> None:
    nested = rollout(input=[TraceStatus(status_code="OK"), (None, attempt())], metadata={"gone": None})
    dumped = nested.model_dump(include={"input", "metadata", "mode"}, exclude_none=True)
    assert dumped["input"][0] == {"status_code": "OK"}
    assert dumped["input"][1][0] is None
    assert dumped["input"][1][1]["attempt_id"] == "at-1"
    assert "worker_id" not in dumped["input"][1][1]
    assert dumped["metadata"] == {"gone": None}
    assert "mode" not in dumped
    assert nested.model_dump(mode="json", include=["input"])["input"][1][0] is None
    assert "input" not in nested.model_dump(exclude={"input"})
    assert nested.model_dump_json(include={"status"}) == '{"status":"queuing"}'
    names: Any
    for names in ({"config": {"max_attempts"}}, "status"):
        with pytest.raises(InvalidInput, match="set of field names"):
            nested.model_dump(exclude=names)


def test_the_deepest_input_can_be_dumped() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    dumped = rollout(input=value).model_dump(mode="json")
    assert encode_json(dumped["input"]) == encode_json(value)


def test_validation_ignores_unknown_keys_and_makes_nested_records() -> None:
    made = AttemptedRollout.model_validate(
        rollout().model_dump()
        | {"attempt": attempt().model_dump(), "unknown": 1, "config": {"max_attempts": 3}}
    )
    assert type(made.attempt) is Attempt
    assert made.config == RolloutConfig(max_attempts=3)
    assert not hasattr(made, "unknown")
    built = AttemptedRollout(
        rollout_id="ro-1",
        input=1,
        start_time=1.0,
        config={"max_attempts": 4},  # type: ignore[arg-type]
        attempt=attempt().model_dump(),  # type: ignore[arg-type]
    )
    assert built.config.max_attempts == 4
    assert built.attempt == attempt()


def test_validation_takes_other_models() -> None:
    class Foreign:
        def model_dump(self) -> dict[str, Any]:
            return {"max_attempts": 2}

    assert RolloutConfig.model_validate(Foreign()) == RolloutConfig(max_attempts=2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": -1}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        ({"max_attempts": 1.5}, "max_attempts"),
        ({"max_attempts": "3"}, "max_attempts"),
        ({"max_attempts": None}, "max_attempts"),
        ({"timeout_seconds": "x"}, "timeout_seconds"),
        ({"timeout_seconds": True}, "timeout_seconds"),
        ({"timeout_seconds": -0.1}, "timeout_seconds"),
        ({"timeout_seconds": math.nan}, "timeout_seconds"),
        ({"timeout_seconds": math.inf}, "timeout_seconds"),
        ({"timeout_seconds": 10**400}, "timeout_seconds"),
        ({"unresponsive_seconds": []}, "unresponsive_seconds"),
        ({"unresponsive_seconds": -1}, "unresponsive_seconds"),
        ({"retry_condition": ["queuing"]}, "retry_condition"),
        ({"retry_condition": [[]]}, "retry_condition"),
        ({"retry_condition": "failed"}, "retry_condition"),
        ({"retry_condition": None}, "retry_condition"),
    ],
)
def test_bad_configs_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RolloutConfig(**fields)
    with pytest.raises(InvalidInput, match=message):
        RolloutConfig.model_validate(fields)
    with pytest.raises(InvalidInput, match=f"config.*{message}|{message}.*config"):
        Rollout.model_validate(rollout().model_dump() | {"config": fields})


def test_good_configs() -> None:
    config = RolloutConfig(timeout_seconds=0, unresponsive_seconds=3, retry_condition=("failed", "timeout"))  # type: ignore[arg-type]
    assert (config.timeout_seconds, config.unresponsive_seconds) == (0.0, 3.0)
    assert isinstance(config.timeout_seconds, float)
    assert config.retry_condition == ["failed", "timeout"]
    assert RolloutConfig().retry_condition is not RolloutConfig().retry_condition


def test_a_config_owns_its_retry_condition() -> None:
    condition: list[records.AttemptStatus] = ["failed"]
    config = RolloutConfig(retry_condition=condition)
    condition.append("timeout")
    assert config.retry_condition == ["failed"]


@pytest.mark.parametrize("bad", ["bogus", "", None, 3, [], "Queuing"])
def test_statuses_are_checked_by_every_constructor(bad: Any) -> None:
    for make in (rollout, attempt):
        with pytest.raises(InvalidInput, match="status must be one of"):
            make(status=bad)
    with pytest.raises(InvalidInput, match=r"Worker.status must be one of idle, busy or unknown"):
        Worker(worker_id="w", status=bad)
    if bad is not None:
        with pytest.raises(InvalidInput, match=r"Rollout.mode"):
            rollout(mode=bad)
        with pytest.raises(InvalidInput, match=r"EnqueueRolloutRequest.mode"):
            EnqueueRolloutRequest(input=1, mode=bad)
    with pytest.raises(InvalidInput, match="status"):
        Attempt.model_validate(attempt().model_dump() | {"status": bad})


def test_attempts_have_fewer_statuses_than_rollouts() -> None:
    for status in ("requeuing", "cancelled", "queuing"):
        with pytest.raises(InvalidInput):
            attempt(status=status)
    assert [rollout(status=name).status for name in records.ROLLOUT_STATUSES] == [*records.ROLLOUT_STATUSES]
    assert [attempt(status=name).status for name in records.ATTEMPT_STATUSES] == [*records.ATTEMPT_STATUSES]


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        (5, "Attempt must be an object, not int"),
        ([], "must be an object"),
        ({"rollout_id": "x"}, "attempt_id"),
        ({1: 2}, "Expected `str` in Attempt"),
        (attempt().model_dump() | {"sequence_id": "1"}, "sequence_id"),
        (attempt().model_dump() | {"start_time": True}, "start_time"),
        (attempt().model_dump() | {"metadata": []}, "metadata"),
        (attempt().model_dump() | {"worker_id": 5}, "worker_id"),
    ],
)
def test_bad_objects_are_refused_with_the_name_of_the_field(obj: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Attempt.model_validate(obj)
    with pytest.raises(ValueError, match="not JSON"):
        Attempt.model_validate_json("{")


def test_an_attempt_belongs_to_its_rollout() -> None:
    other = attempt(rollout_id="ro-2")
    with pytest.raises(ValueError, match="is of rollout ro-2, not ro-1"):
        AttemptedRollout(rollout_id="ro-1", input=1, start_time=1.0, attempt=other)
    with pytest.raises(InvalidInput, match="is of rollout ro-2"):
        AttemptedRollout.model_validate(rollout().model_dump() | {"attempt": other.model_dump()})


@pytest.mark.parametrize(
    "fields",
    [
        {"config": 5},
        {"config": {"max_attempts": 0}},
        {"metadata": [1]},
        {"metadata": {1: 2}},
        {"resources_id": 5},
        {"resources_id": "a\0"},
        {"queue": None},
        {"queue": "x" * 1025},
        {"idempotency_key": "\ud800"},
        {"priority": "high"},
        {"priority": True},
        {"priority": False},
        {"priority": 0.0},
        {"priority": 2**31},
        {"not_before": "soon"},
        {"not_before": math.nan},
        {"not_before": 1e13},
    ],
)
def test_bad_requests_are_refused(fields: dict[str, Any]) -> None:
    field = next(iter(fields))
    with pytest.raises(InvalidInput, match=r"max_attempts|RolloutConfig" if field == "config" else field):
        EnqueueRolloutRequest(input=1, **fields)
    with pytest.raises(InvalidInput):
        EnqueueRolloutRequest.model_validate({"input": 1, **fields})


def test_good_requests() -> None:
    request = EnqueueRolloutRequest(
        input={"a": 1},
        mode="val",
        config={"max_attempts": 2},  # type: ignore[arg-type]
        metadata=MappingProxyType({"m": 1}),  # type: ignore[arg-type]
        priority=-5,
        not_before=100,
        idempotency_key="once",
    )
    assert request.config == RolloutConfig(max_attempts=2)
    assert request.metadata == {"m": 1}
    assert isinstance(request.not_before, float)


def test_pages_are_sequences() -> None:
    page = PaginatedResult(items=[1, 2, 3], limit=3, offset=1, total=9)
    assert (len(page), page[0], page[-1], page[1:], list(page)) == (3, 1, 3, [2, 3], [1, 2, 3])
    assert 2 in page
    assert list(reversed(page)) == [3, 2, 1]
    assert (page.index(3), page.count(1)) == (2, 1)
    assert (page.limit, page.offset, page.total) == (3, 1, 9)
    assert page == PaginatedResult(items=[1, 2, 3], limit=3, offset=1, total=9)
    assert page != PaginatedResult(items=[1, 2, 3], limit=3, offset=1, total=8)
    assert pickle.loads(pickle.dumps(page)) == page
    assert repr(page) == "PaginatedResult(items=[1, 2, 3], limit=3, offset=1, total=9)"
    empty: PaginatedResult[int] = PaginatedResult(items=[], limit=-1, offset=0, total=0)
    assert not empty
    assert (empty == []) is False
    with pytest.raises(IndexError):
        empty[0]


def test_pages_dump_and_encode_their_items() -> None:
    page = PaginatedResult(items=[attempt()], limit=-1, offset=0, total=1)
    expected = {"items": [attempt().model_dump()], "limit": -1, "offset": 0, "total": 1}
    assert page.model_dump() == page.model_dump(mode="json") == decode_json(encode_json(page)) == expected


def test_unset_is_one_object() -> None:
    assert repr(UNSET) == "UNSET"
    assert UNSET is not None
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(UNSET, protocol)) is UNSET
    assert copy.copy(UNSET) is UNSET
    assert copy.deepcopy({"a": UNSET})["a"] is UNSET
    assert isinstance(UNSET, Unset)


def test_phases_of_a_rollout() -> None:
    asked = (is_queuing, is_running, is_finished)
    phases = {
        status: tuple(ask(rollout(status=status)) for ask in asked) for status in records.ROLLOUT_STATUSES
    }
    assert phases == {
        "queuing": (True, False, False),
        "requeuing": (True, False, False),
        "preparing": (False, True, False),
        "running": (False, True, False),
        "failed": (False, False, True),
        "succeeded": (False, False, True),
        "cancelled": (False, False, True),
    }
