"""Requests of the Agent-lightning protocol, good and bad, and how their answers become comparable.

This module uses only the standard library, because the recorder runs it in the peer's environment too.
"""

import http.client
import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

PREFIX = "/v1/agl"
ATTEMPT = "/rollouts/<ro-1>/attempts/<at-1>"
ATTEMPTS = "/rollouts/<ro-2>/attempts"
ABSENT: Any = object()
"""A request without a body."""

TRACE = "a" * 32
CONFIG = {
    "timeout_seconds": 5,
    "unresponsive_seconds": None,
    "max_attempts": 2,
    "retry_condition": ["failed"],
}
LLM = {
    "resource_type": "llm",
    "endpoint": "http://localhost/v1",
    "model": "m",
    "sampling_parameters": {"t": 1},
}
PROMPT = {"resource_type": "prompt_template", "template": "Hi {name}", "engine": "f-string"}


def span(span_id: str, **fields: Any) -> dict[str, Any]:
    return {
        "rollout_id": "<ro-1>",
        "attempt_id": "<at-1>",
        "sequence_id": 1,
        "trace_id": TRACE,
        "span_id": span_id,
        "parent_id": None,
        "name": "step",
        "status": {"status_code": "OK", "description": None},
        "attributes": {"number": 1, "text": "ü", "list": [1, 2]},
        "events": [{"name": "event", "attributes": {}, "timestamp": 1.5}],
        "links": [],
        "start_time": 1.0,
        "end_time": 2.0,
        "context": {"trace_id": TRACE, "span_id": span_id, "is_remote": False, "trace_state": {}},
        "parent": None,
        "resource": {"attributes": {"service.name": "s"}, "schema_url": ""},
        **fields,
    }


class Case(NamedTuple):
    """A request; ids such as <ro-1> refer to earlier answers."""

    name: str
    method: str
    path: str
    body: Any = ABSENT


def without(body: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key != name}


CASES = (
    Case("health", "GET", "/health"),
    # --- the queue
    Case("start a rollout", "POST", "/rollouts", {
        "input": {"q": [1, None, "ü"]}, "mode": "train", "resources_id": None, "config": CONFIG,
        "metadata": {"k": "v"}, "worker_id": "w-1",
    }),
    Case("start with the input alone", "POST", "/rollouts", {"input": None}),
    Case("start without an input", "POST", "/rollouts", {"mode": "train"}),
    Case("start with an unknown mode", "POST", "/rollouts", {"input": 1, "mode": "bogus"}),
    Case("start with an unknown key", "POST", "/rollouts", {"input": 1, "surplus": 2}),
    Case("start with no attempts allowed", "POST", "/rollouts", {"input": 1, "config": {"max_attempts": 0}}),
    Case("start with metadata that is a list", "POST", "/rollouts", {"input": 1, "metadata": [1]}),
    Case("enqueue one", "POST", "/queues/rollouts/enqueue", {"rollouts": [
        {"input": "a", "mode": None, "resources_id": "res-add", "config": None, "metadata": None},
    ]}),
    Case("enqueue two", "POST", "/queues/rollouts/enqueue", {"rollouts": [
        {"input": "b", "metadata": {"n": 1}}, {"input": {"c": 1}, "mode": "val", "config": CONFIG},
    ]}),
    Case("enqueue none", "POST", "/queues/rollouts/enqueue", {"rollouts": []}),
    Case("enqueue without the list", "POST", "/queues/rollouts/enqueue", {}),
    Case("enqueue without an input", "POST", "/queues/rollouts/enqueue", {"rollouts": [{"input": 1}, {}]}),
    Case("enqueue a bad status to retry", "POST", "/queues/rollouts/enqueue", {
        "rollouts": [{"input": 1, "config": {"retry_condition": ["cancelled"]}}],
    }),
    Case("enqueue what is no list", "POST", "/queues/rollouts/enqueue", {"rollouts": 1}),
    Case("enqueue what is no JSON", "POST", "/queues/rollouts/enqueue", b"{bad"),
    Case("enqueue without a body", "POST", "/queues/rollouts/enqueue"),
    Case("dequeue without a body", "POST", "/queues/rollouts/dequeue"),
    Case("dequeue with null", "POST", "/queues/rollouts/dequeue", None),
    Case("dequeue two for a worker", "POST", "/queues/rollouts/dequeue", {"limit": 2, "worker_id": "w-2"}),
    Case("dequeue from an empty queue", "POST", "/queues/rollouts/dequeue", {"limit": 1, "worker_id": "w-3"}),
    Case("dequeue none", "POST", "/queues/rollouts/dequeue", {"limit": 0}),
    Case("dequeue less than none", "POST", "/queues/rollouts/dequeue", {"limit": -3}),
    Case("dequeue a word", "POST", "/queues/rollouts/dequeue", {"limit": "many"}),
    # --- rollouts
    Case("get a rollout", "GET", "/rollouts/<ro-1>"),
    Case("get an unknown rollout", "GET", "/rollouts/ro-unknown"),
    Case("list rollouts", "GET", "/rollouts"),
    Case("list rollouts of two statuses", "GET", "/rollouts?status_in=preparing&status_in=failed&limit=2"),
    Case("list rollouts by ids", "GET", "/rollouts?rollout_id_in=<ro-2>&rollout_id_in=<ro-1>"),
    Case("list rollouts sorted", "GET", "/rollouts?sort_by=status&sort_order=desc&limit=1&offset=1"),
    Case("list rollouts with a bad order", "GET", "/rollouts?sort_order=up"),
    Case("list rollouts with a bad limit", "GET", "/rollouts?limit=x"),
    Case("list rollouts with a bad status", "GET", "/rollouts?status_in=bogus"),
    Case("list rollouts with limit 0", "GET", "/rollouts?limit=0"),
    Case("search rollouts", "POST", "/rollouts/search", {"limit": -1, "offset": 0, "filter_logic": "and"}),
    Case("search rollouts past the end", "POST", "/rollouts/search", {"limit": 10, "offset": 100}),
    Case("search rollouts of no status", "POST", "/rollouts/search", {"status_in": []}),
    Case("search rollouts by either", "POST", "/rollouts/search", {
        "status_in": ["cancelled"], "rollout_id_in": ["<ro-1>"], "filter_logic": "or",
    }),
    Case("search rollouts by a part of the id", "POST", "/rollouts/search", {"rollout_id_contains": "no"}),
    Case("search rollouts by an unknown field", "POST", "/rollouts/search", {"sort_by": "bogus"}),
    Case("search rollouts with limit 0", "POST", "/rollouts/search", {"limit": 0}),
    Case("search rollouts with limit -2", "POST", "/rollouts/search", {"limit": -2}),
    Case("search rollouts with offset -1", "POST", "/rollouts/search", {"offset": -1}),
    Case("search rollouts with a bad order", "POST", "/rollouts/search", {"sort_order": "up"}),
    Case("search rollouts with a bad logic", "POST", "/rollouts/search", {"filter_logic": "xor"}),
    Case("search rollouts with a bad limit", "POST", "/rollouts/search", {"limit": "x"}),
    Case("search rollouts without a body", "POST", "/rollouts/search"),
    Case("update nothing of a rollout", "POST", "/rollouts/<ro-2>", {}),
    Case("update a rollout to null", "POST", "/rollouts/<ro-2>", {
        "input": None, "mode": None, "resources_id": None, "metadata": None,
    }),
    Case("update a rollout", "POST", "/rollouts/<ro-2>", {
        "input": {"x": 1}, "mode": "test", "resources_id": "r", "metadata": {"m": 1}, "config": CONFIG,
    }),
    Case("cancel a rollout", "POST", "/rollouts/<ro-2>", {"status": "cancelled"}),
    Case("update a rollout's status to null", "POST", "/rollouts/<ro-2>", {"status": None}),
    Case("update a rollout's config to null", "POST", "/rollouts/<ro-2>", {"config": None}),
    Case("update a rollout to a bad status", "POST", "/rollouts/<ro-2>", {"status": "timeout"}),
    Case("update an unknown rollout", "POST", "/rollouts/ro-unknown", {"status": "failed"}),
    Case("update a rollout without a body", "POST", "/rollouts/<ro-2>"),
    # --- attempts
    Case("start an attempt without a body", "POST", ATTEMPTS),
    Case("start an attempt with null", "POST", ATTEMPTS, None),
    Case("start an attempt for a worker", "POST", ATTEMPTS, {"worker_id": "w-4"}),
    Case("start an attempt at an unknown rollout", "POST", "/rollouts/ro-unknown/attempts", {}),
    Case("list attempts", "GET", "/rollouts/<ro-2>/attempts?sort_order=desc&limit=2"),
    Case("list attempts of an unknown rollout", "GET", "/rollouts/ro-unknown/attempts"),
    Case("list attempts by an unknown field", "GET", "/rollouts/<ro-2>/attempts?sort_by=bogus"),
    Case("search attempts", "POST", ATTEMPTS + "/search", {"limit": -1, "offset": 1}),
    Case("search attempts by null", "POST", ATTEMPTS + "/search", {"sort_by": None}),
    Case("search attempts by an unknown field", "POST", ATTEMPTS + "/search", {"sort_by": "mode"}),
    Case("get the latest attempt", "GET", "/rollouts/<ro-2>/attempts/latest"),
    Case("get the latest attempt of an unknown rollout", "GET", "/rollouts/ro-unknown/attempts/latest"),
    Case("update the latest attempt", "POST", "/rollouts/<ro-2>/attempts/latest", {
        "status": "succeeded", "worker_id": "w-5", "metadata": {"a": 1}, "last_heartbeat_time": 3,
    }),
    Case("update nothing of an attempt", "POST", ATTEMPT, {}),
    Case("update an attempt's status to null", "POST", ATTEMPT, {"status": None}),
    Case("update an attempt's worker to null", "POST", ATTEMPT, {"worker_id": None}),
    Case("update an attempt's time to null", "POST", ATTEMPT, {
        "last_heartbeat_time": None,
    }),
    Case("update an attempt's metadata to null", "POST", ATTEMPT, {"metadata": None}),
    Case("update an attempt to a bad status", "POST", ATTEMPT, {"status": "cancelled"}),
    Case("update an unknown attempt", "POST", "/rollouts/<ro-1>/attempts/at-unknown", {"status": "failed"}),
    Case("update an attempt without a body", "POST", ATTEMPT),
    # --- spans
    Case("add a span", "POST", "/spans", span("b" * 16)),
    Case("add a span again", "POST", "/spans", span("b" * 16)),
    Case("add a span with unknown keys", "POST", "/spans", span(
        "c" * 16, sequence_id=7, kind={"deep": [1]}, status={"status_code": "ERROR", "extra": 1},
    )),
    Case("add a span without a name", "POST", "/spans", without(span("d" * 16), "name")),
    Case("add a span without a parent id", "POST", "/spans", without(span("d" * 16), "parent_id")),
    Case("add a span with a bad status", "POST", "/spans", span("d" * 16, status={"status_code": "GOOD"})),
    Case("add a span of an unknown rollout", "POST", "/spans", span("d" * 16, rollout_id="ro-unknown")),
    Case("add a span of an unknown attempt", "POST", "/spans", span("d" * 16, attempt_id="at-unknown")),
    Case("next sequence id", "POST", "/spans/next", {"rollout_id": "<ro-1>", "attempt_id": "<at-1>"}),
    Case("next sequence id without an attempt", "POST", "/spans/next", {"rollout_id": "<ro-1>"}),
    Case("list spans", "GET", "/spans?rollout_id=<ro-1>&sort_order=desc"),
    Case("list spans without a rollout", "GET", "/spans"),
    Case("list spans by an unknown field", "GET", "/spans?rollout_id=<ro-1>&sort_by=bogus"),
    Case("search spans", "POST", "/spans/search", {"rollout_id": "<ro-1>", "attempt_id": "latest"}),
    Case("search spans by filters", "POST", "/spans/search", {
        "rollout_id": "<ro-1>", "name_contains": "nothing", "span_id": "c" * 16, "filter_logic": "or",
    }),
    Case("search spans of an unknown rollout", "POST", "/spans/search", {"rollout_id": "ro-unknown"}),
    Case("search spans without a rollout", "POST", "/spans/search", {}),
    # --- resources
    Case("no latest resources", "GET", "/resources/latest"),
    Case("add resources", "POST", "/resources", {"llm": LLM, "prompt": PROMPT}),
    Case("add no resources", "POST", "/resources", {}),
    Case("add resources of an unknown type", "POST", "/resources", {"x": {"resource_type": "bogus"}}),
    Case("add resources that lack a field", "POST", "/resources", {"x": {"resource_type": "llm"}}),
    Case("add resources that are a list", "POST", "/resources", []),
    Case("update resources", "POST", "/resources/<rs-1>", {"llm": LLM}),
    Case("update unknown resources", "POST", "/resources/mine", {"prompt": PROMPT}),
    Case("get resources", "GET", "/resources/<rs-1>"),
    Case("get unknown resources", "GET", "/resources/rs-unknown"),
    Case("get the latest resources", "GET", "/resources/latest"),
    Case("list resources", "GET", "/resources?limit=1&offset=1&sort_by=version&sort_order=desc"),
    Case("list resources by id", "GET", "/resources?resources_id=mine&resources_id_contains=in"),
    Case("list resources by an unknown field", "GET", "/resources?sort_by=bogus"),
    # --- workers
    Case("beat without a body", "POST", "/workers/w-6"),
    Case("beat with null", "POST", "/workers/w-6", None),
    Case("beat with statistics", "POST", "/workers/w-6", {"heartbeat_stats": {"cpu": 0.5}}),
    Case("beat with null statistics", "POST", "/workers/w-6", {"heartbeat_stats": None}),
    Case("beat with a list", "POST", "/workers/w-6", {"heartbeat_stats": [1]}),
    Case("get a worker", "GET", "/workers/w-6"),
    Case("get an unknown worker", "GET", "/workers/w-unknown"),
    Case("list workers", "GET", "/workers?status_in=busy&status_in=unknown&sort_by=worker_id&limit=2"),
    Case("list workers with a bad status", "GET", "/workers?status_in=asleep"),
    Case("search workers", "POST", "/workers/search", {"filter_logic": "and", "worker_id_contains": "w-6"}),
    Case("search workers by an unknown field", "POST", "/workers/search", {"sort_by": "bogus"}),
    # --- waiting, and missing objects
    Case("wait for one that has ended", "POST", "/waits/rollouts", {"rollout_ids": ["<ro-2>"], "timeout": 0}),
    Case("wait for an unknown one", "POST", "/waits/rollouts", {"rollout_ids": ["ro-unknown"], "timeout": 0}),
    Case("wait for none", "POST", "/waits/rollouts", {"rollout_ids": [], "timeout": 0}),
    Case("wait without ids", "POST", "/waits/rollouts", {"timeout": 0}),
    Case("statistics", "GET", "/statistics"),
    Case("an unknown path", "GET", "/nothing"),
    Case("a wrong method", "DELETE", "/rollouts/<ro-1>"),
)  # fmt: skip

_ID = re.compile(r"\b(?:ro|at|rs)-[0-9a-f]{8,12}\b")
_PLACE = re.compile(r"<(?:ro|at|rs)-\d+>")
_SILENT = {"traceback", "request_id"}


class Names:
    """Placeholder ids in order of appearance, for ids that differ between runs."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def normal(self, value: Any, key: str = "") -> Any:
        """Return the comparable part of an answer."""
        if isinstance(value, dict):
            return {name: self.normal(each, name) for name, each in value.items() if name not in _SILENT}
        if isinstance(value, list):
            return [self.normal(each) for each in value]
        if isinstance(value, str):
            return _ID.sub(lambda found: self._name(found[0]), value)
        if isinstance(value, float | int) and key.endswith(("_time", "uptime")):
            return "<time>"
        return "<bytes>" if key.endswith("_bytes") else value

    def _name(self, found: str) -> str:
        if found not in self._names:
            kind = found[:2]
            number = 1 + sum(name.startswith(f"<{kind}-") for name in self._names.values())
            self._names[found] = f"<{kind}-{number}>"
        return self._names[found]

    def real(self, text: str) -> str:
        """Return a request with its real ids."""
        known = {name: found for found, name in self._names.items()}
        return _PLACE.sub(lambda place: known[place[0]], text)


def play(url: str, cases: Iterable[Case] = CASES) -> dict[str, dict[str, Any]]:
    """Send the requests in order, and return each answer in its comparable form."""
    names = Names()
    answers: dict[str, dict[str, Any]] = {}
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        for case in cases:
            status, data = _send(connection, case, names)
            answers[case.name] = {"status": status, "body": names.normal(json.loads(data))}
    finally:
        connection.close()
    return answers


def _send(connection: http.client.HTTPConnection, case: Case, names: Names) -> tuple[int, bytes]:
    headers = {}
    body = None
    if case.body is not ABSENT:
        headers["Content-Type"] = "application/json"
        body = case.body if isinstance(case.body, bytes) else names.real(json.dumps(case.body)).encode()
    connection.request(case.method, PREFIX + quote(names.real(case.path), safe="/?&="), body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()
