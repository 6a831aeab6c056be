"""Schedule target: runs of assistants, created in the transaction that records the firing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from perdure.kernel.codec import encode_json
from perdure.kernel.errors import MAX_ERROR, InvalidInput, NotFound, PerdureError
from perdure.kernel.storage.port import Tx
from perdure.rollouts.model import ENDED, SUCCEEDED, Kinds
from perdure.rollouts.operations.work import ENDED_CHANNEL, ended_key
from perdure.schedules.model import FAILED, SUCCESS, FiringOutcome, FiringRequest
from perdure.threads.encoding import new_run
from perdure.threads.operations.create import NewRun, create_runs
from perdure.threads.operations.settle import load_runs, load_threads
from perdure.threads.policy import Policy
from perdure.threads.records import RunRequest
from perdure.threads.rows import RunRow, decode_failure

ON_COMPLETED: Final = "on_run_completed"
"""`delete` or `keep`: what happens to the temporary thread of a run afterwards."""
_FIELDS: Final = frozenset(RunRequest.__struct_fields__) - {
    "assistant_id",
    "thread_id",
    "metadata",
    "on_completion",
    "options",
}


class RunTarget:
    """Start runs. A payload has the fields of a run request and the options of its agent."""

    name = "run"

    def __init__(self, kinds: Kinds, policy: Policy) -> None:
        self._kinds = kinds
        self._policy = policy

    def prepare(self, order: FiringRequest) -> NewRun:
        """Build the run of a request, checked and encoded."""
        request = build_request(order)
        # A schedule of an earlier release may have more metadata than a request accepts.
        return new_run(request, self._policy, known=encode_json(request.metadata, what="metadata"))

    async def refusal(self, tx: Tx, thread_id: str | None) -> PerdureError | None:
        """Return NotFound if the thread does not exist."""
        if thread_id is None:
            return None
        thread = (await load_threads(tx, [thread_id])).get(thread_id)
        exists = thread is not None and not thread.is_gone
        return None if exists else NotFound(f"Thread {thread_id} not found")

    async def start(self, tx: Tx, prepared: Sequence[NewRun]) -> list[str | PerdureError]:
        """Create the runs; return their ids."""
        created = await create_runs(tx, prepared, self._kinds)
        return [answer if isinstance(answer, PerdureError) else answer.record.id for answer in created]

    async def find(self, tx: Tx, started: Sequence[str]) -> Mapping[str, RunRow]:
        """Return the existing runs; those of deleted threads are left out."""
        return await load_runs(tx, started)

    def outcome(self, run: RunRow) -> FiringOutcome | None:
        """Return the outcome of a run; None while it has not ended."""
        if run.rollout_status not in ENDED:
            return None
        duration = None if run.end_time is None else max(run.end_time - run.created_at, 0)
        if run.rollout_status == SUCCEEDED:
            return FiringOutcome(SUCCESS, duration)
        failure = decode_failure(run.error)
        error = run.status if failure is None else f"{failure.error}: {failure.message}"
        return FiringOutcome(FAILED, duration, error[:MAX_ERROR])

    def ended_key(self, ns: int, started_id: str) -> tuple[str, str]:
        """Return the hint for the end of a run."""
        return ENDED_CHANNEL, ended_key(ns, started_id)


def build_request(order: FiringRequest) -> RunRequest:
    """Build the run request of a schedule. The agent finds the schedule's id in `configurable`."""
    if order.assistant_id is None:
        raise InvalidInput("a schedule of runs needs an assistant_id")
    payload = {name: value for name, value in order.payload.items() if value is not None}
    completed = payload.pop(ON_COMPLETED, "delete")
    fields = {name: payload.pop(name) for name in _FIELDS & payload.keys()}
    modes = fields.get("stream_mode")
    if isinstance(modes, str):
        fields["stream_mode"] = [modes]
    fields["config"] = _with_id(fields.get("config"), order.schedule_id)
    fields.setdefault("multitask_strategy", "enqueue")
    if order.timeout is not None:
        fields.setdefault("timeout_seconds", order.timeout)
    fields |= {"assistant_id": order.assistant_id, "thread_id": order.thread_id, "on_completion": completed}
    fields |= {"metadata": _merge_metadata(fields["config"], order.metadata), "options": payload}
    fields["inherit_metadata"] = True
    try:
        return msgspec.convert(fields, RunRequest)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the run that is scheduled: {error}") from None


def _merge_metadata(config: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    inner = config.get("metadata")
    return {**(inner if isinstance(inner, Mapping) else {}), **metadata}


def _with_id(config: Any, schedule_id: str) -> dict[str, Any]:
    if config is not None and not isinstance(config, Mapping):
        raise InvalidInput("config must be an object")
    checked = dict(config or {})
    inner = checked.get("configurable") or {}
    if not isinstance(inner, Mapping):
        raise InvalidInput("config.configurable must be an object")
    return {**checked, "configurable": {**inner, "cron_id": schedule_id}}
