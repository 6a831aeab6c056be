"""Enqueues over HTTP: the usual form is read, stored and answered like any other."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from msgspec import structs
from tests.server.support import Visitor, serving

from perdure import EnqueueRolloutRequest, InMemoryLightningStore, LightningStore, Rollout
from perdure.client import lightning_wire as wire
from perdure.client.lightning_wire import PREFIX
from perdure.kernel.codec import MAX_DEPTH, encode_wire
from perdure.kernel.errors import PerdureError
from perdure.kernel.record import usual_decoder
from perdure.rollouts import encoding
from perdure.rollouts.records import RolloutAnswer, RolloutConfig, UsualRequest, parse_request
from perdure.rollouts.rows import RolloutRecordRow
from perdure.rollouts.service import Rollouts
from perdure.server.http import bodies
from perdure.server.native.derive import get_endpoint

LIGHTNING = PREFIX + "/queues/rollouts/enqueue"
ONE = "/api/v1/rollouts"
MANY = "/api/v1/rollouts/batch"
JSON = {"Content-Type": "application/json"}

INPUTS = [
    b"null",
    b"{}",
    b"[]",
    b'""',
    b"0",
    b"-0",
    b"-0.0",
    b"1e5",
    b"1E-400",
    b"1e400",
    b"NaN",
    b"Infinity",
    b"123456789012345678901234567890",
    b"9" * 400,
    b"9" * 5000,
    b"0.1234567890123456789012345",
    b'{"a": 1,\n "a": 2}',
    b'{"a":{"b":1,"b":[1,1]}}',
    b'"\\ud83d\\ude00\\u00e9\\u0000\\/"',
    b'"\\ud800"',
    '"żółw 🐢 \u2028"'.encode(),
    b'"\xff"',
    b'"a\x00"',
    b'"a\nb"',
    b"[1,]",
    b"tru",
    b"",
    b"[" * MAX_DEPTH + b"]" * MAX_DEPTH,
    b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
    b"[" * 5000 + b"]" * 5000,
    b"[" + b"{}," * 2 * MAX_DEPTH + b"{}]",
]
LONG = "x" * 300
FIELDS: list[dict[str, Any]] = [
    {},
    {"mode": "val"},
    {"mode": "no such"},
    {"resources_id": "rs-1", "queue": "other", "idempotency_key": "k"},
    {"resources_id": None, "config": None, "metadata": None, "not_before": None, "idempotency_key": None},
    {"idempotency_key": ""},
    {"queue": ""},
    {"queue": None},
    {"queue": 1},
    {"queue": LONG},
    {"queue": "ż" * 600},
    {"resources_id": "x" * 1024},
    {"resources_id": "x" * 1025},
    {"idempotency_key": "a\0b"},
    {"idempotency_key": "ends with a line\n"},
    {"idempotency_key": "a\0"},
    {"priority": 5},
    {"priority": -(2**31)},
    {"priority": 2**31},
    {"priority": 1.0},
    {"priority": True},
    {"not_before": 4e9},
    {"not_before": 4_000_000_000},
    {"not_before": -5},
    {"not_before": 1e13},
    {"not_before": "soon"},
    {"metadata": {}},
    {"metadata": {"a": [1, {"b": None}], "ż": 1.5}},
    {"metadata": {"a": "x" * 70_000}},
    {"metadata": {str(number): number for number in range(1001)}},
    {"metadata": {"k" * 300: 1}},
    {"metadata": []},
    {"config": {}},
    {"config": {"max_attempts": 3, "timeout_seconds": 5, "retry_condition": ["failed", "timeout"]}},
    {"config": {"max_attempts": 0}},
    {"config": {"timeout_seconds": 1e13}},
    {"config": {"retry_condition": ["no such"]}},
    {"unknown": 1},
]
REQUESTS = [b'{"input":%b}' % given for given in INPUTS]
REQUESTS += [json.dumps({"input": 1, **fields}).encode() for fields in FIELDS]
REQUESTS += [b'{"queue":"default"}', b"null", b"[]", b'{"input":1,"metadata":{"a":1,"a":2},"input":2}']
ids = [str(request[:60]) for request in REQUESTS]


def _read(data: bytes, kind: Any) -> Any:
    try:
        return bodies.decode_body(data, kind, optional=False)
    except PerdureError as error:
        return type(error), error.message


def _new(request: Any, key: str | None = None) -> Any:
    try:
        return encoding.from_request(request, key)
    except PerdureError as error:
        return type(error), error.message


@pytest.mark.parametrize("request_body", REQUESTS, ids=ids)
def test_the_usual_form_is_read_and_stored_as_its_record(
    request_body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _read(request_body, EnqueueRolloutRequest)
    monkeypatch.setattr(bodies, "usual_decoder", lambda kind: None)
    expected = _read(request_body, EnqueueRolloutRequest)
    if isinstance(expected, tuple):
        assert found == expected
        return
    assert type(expected) is EnqueueRolloutRequest
    assert repr(parse_request(found)) == repr(expected)
    assert _new(found) == _new(expected)
    assert _new(found, "given") == _new(expected, "given")
    assert _new(found, "x" * 1025) == _new(expected, "x" * 1025)


def test_bodies_with_requests_have_the_usual_form_too() -> None:
    data = b'{"rollouts":[{"input":1},{"input":2}]}'
    for kind in (wire.EnqueueRollouts, get_endpoint(Rollouts.enqueue_many).shape.body):
        usual = usual_decoder(kind)
        assert usual is not None
        assert [type(each) for each in usual(data).rollouts] == [UsualRequest, UsualRequest]
    assert usual_decoder(wire.DequeueCalls) is None


def test_bounds_of_a_body_hold_in_its_usual_form() -> None:
    kind = get_endpoint(Rollouts.enqueue_many).shape.body
    too_many = b'{"rollouts":[' + b",".join([b'{"input":1}'] * 1001) + b"]}"
    assert isinstance(_read(too_many, kind), tuple)
    assert isinstance(_read(b'{"rollouts":[],"unknown":1}', kind), tuple)


def test_the_usual_form_has_the_fields_of_the_record() -> None:
    usual, record = structs.fields(UsualRequest), structs.fields(EnqueueRolloutRequest)
    assert [(each.name, each.default) for each in usual] == [(each.name, each.default) for each in record]
    assert [each.name for each in structs.fields(RolloutAnswer)] == [
        each.name for each in structs.fields(Rollout)
    ]


@pytest.mark.parametrize("config", [None, RolloutConfig(max_attempts=2)])
def test_an_answer_is_encoded_as_its_record(config: RolloutConfig | None) -> None:
    new = encoding.new_rollout({"a": [1.5, "ż"]}, "val", "rs-1", config, {"m": None})
    for parent, end_time in ((None, None), ("p", 5)):
        row = RolloutRecordRow(
            "ro-1", 3, end_time, new.mode, "rs-1", "queuing", new.config, new.metadata, new.input, 0, parent
        )
        assert encode_wire(encoding.answer_from(row)) == encode_wire(encoding.rollout_from(row))


def test_the_config_of_an_earlier_release_is_answered_with_all_its_fields() -> None:
    row = RolloutRecordRow("ro-1", 3, None, None, None, "queuing", '{"max_attempts":2}', "{}", "1", 0)
    assert encode_wire(encoding.answer_from(row)) == encode_wire(encoding.rollout_from(row))


# --- over HTTP ----------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def visitor() -> AsyncIterator[Visitor]:
    async with InMemoryLightningStore() as store, serving(store) as found:
        yield found


async def _enqueue(visitor: Visitor, path: str, request: bytes) -> Any:
    data = request if path == ONE else b'{"rollouts":[' + request + b"]}"
    answer = await visitor.post(path, data=data, headers=JSON)
    if answer.status != 201:
        return answer.status, {name: answer.body[name] for name in ("code", "detail")}
    made = answer.body if path == ONE else answer.body[0] if path == LIGHTNING else answer.body["items"][0]
    stored = (await visitor.get(f"{ONE}/{made['rollout_id']}")).body
    assert stored == made
    return {**made, "rollout_id": None, "start_time": None}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("path", [LIGHTNING, ONE, MANY])
async def test_every_door_answers_the_usual_form_as_any_other(
    visitor: Visitor, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [each for each in REQUESTS if b"idempotency_key" not in each]
    found = [await _enqueue(visitor, path, each) for each in requests]
    monkeypatch.setattr(bodies, "usual_decoder", lambda kind: None)
    assert found == [await _enqueue(visitor, path, each) for each in requests]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("path", [LIGHTNING, ONE, MANY])
async def test_a_repeated_key_gives_the_first_rollout(visitor: Visitor, path: str) -> None:
    keyed = {"headers": JSON | {"Idempotency-Key": f"of {path}"}}
    data = {"input": 1} if path == ONE else {"rollouts": [{"input": 1}]}
    first = await visitor.post(path, json=data, **keyed)
    assert first.status == 201
    assert (await visitor.post(path, json=data, **keyed)).body == first.body


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("path", [LIGHTNING, ONE, MANY])
async def test_an_empty_key_is_none(visitor: Visitor, path: str) -> None:
    request = b'{"input":1,"idempotency_key":""}'
    for _ in range(2):
        assert isinstance(await _enqueue(visitor, path, request), dict)


class Plain(LightningStore):
    """A third-party store with only the contract."""

    def __init__(self) -> None:
        self.inputs: list[Any] = []

    async def enqueue_rollout(self, input: Any, *args: Any, **options: Any) -> Rollout:
        self.inputs.append(input)
        return Rollout(rollout_id="ro-1", input=input, start_time=1.0)

    async def enqueue_many_rollouts(self, rollouts: Any) -> Any:
        assert all(type(each) is EnqueueRolloutRequest for each in rollouts)
        return [await self.enqueue_rollout(each.input) for each in rollouts]


class Watching(InMemoryLightningStore):
    """One of our stores with an overridden method."""

    async def enqueue_many_rollouts(self, rollouts: Any) -> Any:
        assert all(type(each) is EnqueueRolloutRequest for each in rollouts)
        return await super().enqueue_many_rollouts(rollouts)


async def test_methods_of_somebodys_own_get_records() -> None:
    plain = Plain()
    async with Watching() as watching:
        for store in (plain, watching):
            async with serving(store) as visitor:
                for inputs in ([1], [2, 3]):
                    body = {"rollouts": [{"input": each} for each in inputs]}
                    answer = await visitor.post(LIGHTNING, json=body)
                    assert (answer.status, [each["input"] for each in answer.body]) == (201, inputs)
    assert plain.inputs == [1, 2, 3]
