"""A model of threads in a few dictionaries: the behaviour of any store of threads, written from its contract.

It knows neither tables nor transactions. A call takes the ids that the store under test returned, follows the
contract, and returns the answer that the store must give. Times are seconds on the model's own clock, which
the test moves.
"""

from __future__ import annotations

from typing import Any

from tests.support.thread_model_records import (
    LIVE,
    ModelAttempt,
    ModelLimits,
    ModelRun,
    ModelState,
    ModelThread,
)

__all__ = ["LIVE", "ModelAttempt", "ModelLimits", "ModelRun", "ModelState", "ModelThread", "ThreadModel"]

STOPPING = {"interrupt": "interrupted", "rollback": "rollback"}


class ThreadModel:
    """The threads of one namespace."""

    def __init__(self, limits: ModelLimits) -> None:
        self.limits = limits
        self.now = 0.0
        self.threads: dict[str, ModelThread] = {}
        self.runs: dict[str, ModelRun] = {}
        self.holders: dict[str, ModelRun | None] = {}
        self._calls = 0

    # --- visible state ------------------------------------------------------------------------------------

    def thread(self, thread_id: str) -> ModelThread | None:
        """Return a visible thread."""
        found = self.threads.get(thread_id)
        return found if found is not None and found.gone_at is None and not found.hidden else None

    def run(self, run_id: str) -> ModelRun | None:
        """Return a visible run."""
        found = self.runs.get(run_id)
        return found if found is not None and found.gone_at is None and not found.purged else None

    def live_in(self, thread_id: str) -> list[ModelRun]:
        return [run for run in self.runs.values() if run.thread_id == thread_id and run.live]

    def thread_status(self, thread: ModelThread) -> str:
        return "busy" if self.live_in(thread.thread_id) else thread.rest

    def ready(self) -> list[ModelRun]:
        """Return the claimable runs, in order."""
        held = [run for run in self.holders.values() if run is not None]
        return sorted((run for run in held if run.status == "pending" and run.due is None), key=_order)

    # --- callers ------------------------------------------------------------------------------------------

    def create_thread(self, thread_id: str, values: Any = None) -> bool:
        """Return whether a thread could be created; one that is being removed makes room."""
        if self.thread(thread_id) is not None:
            return False
        self._forget(thread_id)
        thread = self.threads[thread_id] = ModelThread(thread_id)
        if values is not None:
            thread.states.append(ModelState(values, None))
        return True

    def may_create_run(self, thread_id: str, strategy: str) -> bool:
        return not (strategy == "reject" and self.live_in(thread_id))

    def create_run(
        self,
        run_id: str,
        thread_id: str,
        strategy: str,
        *,
        delay: float = 0.0,
        priority: int = 0,
        max_attempts: int = 3,
        temporary: bool = False,
    ) -> ModelRun:
        """Create an accepted run, and its thread if it is missing."""
        thread = self.thread(thread_id)
        if thread is None:
            self._forget(thread_id)
            thread = self.threads[thread_id] = ModelThread(thread_id, temporary)
        if strategy in STOPPING:
            self._stop(self.live_in(thread_id), STOPPING[strategy])
        thread.gone_at = None
        self._calls += 1
        place = (self.now + delay, self._calls)
        run = ModelRun(run_id, thread_id, place, priority, max_attempts, thread.temporary)
        run.due = self.now + delay if delay else None
        self.runs[run_id] = run
        self._enter(run)
        return run

    def cancel(self, run_id: str, action: str) -> str:
        """Cancel a run. Return `ok`, or the reason of a refusal."""
        run = self.run(run_id)
        if run is None:
            return "not found"
        if not run.live:
            return "conflict"
        self._stop([run], STOPPING[action])
        return "ok"

    def cancel_all(self, status: str, action: str) -> set[str]:
        """Cancel runs, and return the ended ones."""
        wanted = [run for run in self.runs.values() if run.live and status in (run.status, "all")]
        self._stop(wanted, STOPPING[action])
        return {run.run_id for run in wanted}

    def delete_run(self, run_id: str) -> bool:
        run = self.run(run_id)
        if run is None:
            return False
        if run.live:
            self._stop([run], "rollback")
        else:
            self._drop_states(run)
        run.gone_at = self.now
        return True

    def delete_thread(self, thread_id: str) -> bool:
        thread = self.thread(thread_id)
        if thread is None:
            return False
        self._stop(self.live_in(thread_id), "interrupted")
        thread.gone_at = self.now
        for run in self.runs.values():
            if run.thread_id == thread_id and run.gone_at is None:
                run.gone_at = self.now
        return True

    def update_state(self, thread_id: str, values: Any, *, unfinished: bool) -> str:
        thread = self.thread(thread_id)
        if thread is None:
            return "not found"
        if self.live_in(thread_id):
            return "conflict"
        thread.states.append(ModelState(values, None, unfinished))
        thread.rest, thread.failed = "interrupted" if unfinished else "idle", False
        return "ok"

    def purge(self) -> None:
        """Remove objects that have been invisible for long."""
        over = self.now - self.limits.linger
        for thread in list(self.threads.values()):
            if thread.gone_at is not None and thread.gone_at <= over:
                self._forget(thread.thread_id)
        for run in self.runs.values():
            run.purged = run.purged or (run.gone_at is not None and run.gone_at <= over)

    def _forget(self, thread_id: str) -> None:
        if self.threads.pop(thread_id, None) is not None:
            for run in self.runs.values():
                run.purged = run.purged or run.thread_id == thread_id

    # --- workers ------------------------------------------------------------------------------------------

    def claim(self, run_id: str, attempt_id: str) -> ModelRun:
        """Start the next attempt of a run that a worker claimed."""
        run = self.runs[run_id]
        run.attempts.append(ModelAttempt(attempt_id, self.now, self.now))
        run.status = "running"
        return run

    def holds(self, run_id: str, attempt_id: str) -> bool:
        """Return whether an attempt may write."""
        run = self.runs[run_id]
        return run.status == "running" and self._is_latest(run, attempt_id)

    def _is_latest(self, run: ModelRun, attempt_id: str) -> bool:
        latest = run.latest
        return latest is not None and latest.live and latest.attempt_id == attempt_id

    def save(self, run_id: str, attempt_id: str, values: Any, *, unfinished: bool = False) -> bool:
        if not self.holds(run_id, attempt_id):
            return False
        run = self.runs[run_id]
        self.threads[run.thread_id].states.append(ModelState(values, run, unfinished))
        return True

    def append(self, run_id: str, attempt_id: str, names: list[str]) -> bool:
        if not self.holds(run_id, attempt_id):
            return False
        self._tell(self.runs[run_id], *names)
        return True

    def keep(
        self, run_id: str, attempt_id: str, name: str, count: int, after: int | None, within: str | None
    ) -> str:
        """Save a step with the events before it; a saved step is not changed."""
        if not self.holds(run_id, attempt_id):
            return "fenced"
        run = self.runs[run_id]
        if count and after is not None and after != len(run.events):
            return "conflict"
        self._tell(run, *["custom"] * count)
        run.steps.setdefault(name, (None if after is None else after + count, within))
        return "ok"

    def asked_again(self, run_id: str) -> dict[str, int]:
        """Return the steps that a new attempt requests before new events, and where they were saved."""
        steps = self.runs[run_id].steps
        return {name: seq for name, (seq, within) in steps.items() if seq is not None and within not in steps}

    def renew(self, run_id: str, attempt_id: str) -> str:
        run = self.runs[run_id]
        if not self._is_latest(run, attempt_id):
            return "lost"
        if run.status == "running":
            run.attempts[-1].heard = self.now
            return "go"
        return "rollback" if run.status == "rollback" else "interrupt"

    def hand_back(self, run_id: str, attempt_id: str) -> None:
        run = self.runs[run_id]
        if not self._is_latest(run, attempt_id):
            return
        if run.live:
            self._release(run)
        else:
            self._stopped(run, said="stopped")

    def finish(
        self,
        run_id: str,
        attempt_id: str,
        result: str,
        *,
        values: Any = None,
        unfinished: bool = False,
        retry_after: float = 0.0,
        names: list[str] | None = None,
    ) -> str | None:
        """Return the run's status afterwards; None if the attempt may not decide it."""
        run = self.runs[run_id]
        if not self._is_latest(run, attempt_id):
            known = [each.said for each in run.attempts if each.attempt_id == attempt_id]
            told = known and known[0] is not None and (known[0] != "released" or result == "stopped")
            return run.status if told and not run.purged else None
        if not run.live:
            self._stopped(run, said="stopped")
        elif result == "stopped":
            self._release(run)
        else:
            if values is not None:
                self.save(run_id, attempt_id, values, unfinished=unfinished)
            self._tell(run, *(names or ()))
            self._conclude(run, result, retry_after)
        return None if run.purged else run.status

    def _conclude(self, run: ModelRun, result: str, retry_after: float) -> None:
        attempt = run.attempts[-1]
        attempt.live, attempt.said = False, result
        if result == "retriable" and run.tries < run.max_attempts:
            run.status, run.due = "pending", self.now + retry_after if retry_after else None
        else:
            self._end(run, "error" if result == "retriable" else result)

    def _release(self, run: ModelRun) -> None:
        attempt = run.attempts[-1]
        attempt.live, attempt.charged, attempt.said = False, False, "released"
        run.status = "pending"

    # --- time ---------------------------------------------------------------------------------------------

    def pass_time(self, seconds: float) -> None:
        """Pass time, then run the watchdog: first on due runs, then on overdue ones."""
        self.now += seconds
        due = [run for run in self.runs.values() if run.live and run.due is not None and run.due <= self.now]
        for run in sorted(due, key=lambda each: each.place):
            run.due = None
            self._enter(run)
        for run in list(self.runs.values()):
            self._watch(run)

    def _watch(self, run: ModelRun) -> None:
        if run.stop_by is not None and self.now > run.stop_by:
            self._stopped(run, said=None)
        if run.status != "running":
            return
        attempt = run.attempts[-1]
        silent, late = attempt.heard + self.limits.lease, attempt.started + self.limits.timeout
        if self.now <= min(silent, late):
            return
        attempt.live = False
        if late <= silent:
            self._end(run, "timeout")
        elif run.tries < run.max_attempts:
            run.status = "pending"
        else:
            self._end(run, "error")

    # --- lines --------------------------------------------------------------------------------------------

    def _enter(self, run: ModelRun) -> None:
        """Let a due run take its line if that is free."""
        if run.due is None and self.holders.get(run.thread_id) is None:
            self.holders[run.thread_id] = run

    def _leave(self, thread_id: str) -> None:
        """Free a line: the first waiting run is next."""
        waiting = [run for run in self.live_in(thread_id) if run.due is None]
        self.holders[thread_id] = min(waiting, key=_order, default=None)

    # --- ends ---------------------------------------------------------------------------------------------

    def _stop(self, runs: list[ModelRun], status: str) -> None:
        """End these runs at once, before others can take their lines."""
        for run in runs:
            if run.executed:
                run.stop_by = self.now + self.limits.grace
            self._close(run, status)
        for run in runs:
            self._settle(run)
        for thread_id in {run.thread_id for run in runs}:
            holder = self.holders.get(thread_id)
            if holder in runs and not holder.executed:
                self._leave(thread_id)

    def _end(self, run: ModelRun, status: str) -> None:
        self._close(run, status)
        self._settle(run)
        self._leave(run.thread_id)

    def _close(self, run: ModelRun, status: str) -> None:
        run.status, run.due = status, None
        before = {
            "error": ["error"],
            "timeout": ["error"],
            "interrupted": ["control"],
            "rollback": ["control"],
        }
        self._tell(run, *before.get(status, []), "end")

    def _settle(self, run: ModelRun) -> None:
        thread = self.threads[run.thread_id]
        if not (thread.temporary and thread.rest == "error"):
            thread.rest = self._rest(thread, run)
        thread.failed = run.status in ("error", "timeout") or (thread.failed and run.status != "success")
        if run.status == "rollback" and not run.executed:
            self._drop_states(run)
        if run.temporary and run.status not in ("error", "timeout"):
            run.gone_at = self.now
        if thread.temporary and not self.live_in(thread.thread_id):
            # The thread of a failed run is invisible, and kept with the run.
            thread.hidden = thread.rest == "error"
            thread.gone_at = None if thread.hidden else self.now

    def _rest(self, thread: ModelThread, run: ModelRun) -> str:
        if run.status in ("error", "timeout"):
            return "error"
        if run.status == "rollback" or (run.status == "interrupted" and not run.attempts):
            return thread.rest
        unfinished = thread.state is not None and thread.state.unfinished
        return "interrupted" if run.status == "interrupted" or unfinished else "idle"

    def _stopped(self, run: ModelRun, said: str | None) -> None:
        """Record that the executor of an ended run has stopped, or has expired."""
        attempt = run.attempts[-1]
        attempt.live, attempt.said, run.stop_by = False, said, None
        if run.status == "rollback":
            self._drop_states(run)
        if self.holders.get(run.thread_id) is run:
            self._leave(run.thread_id)

    def _drop_states(self, run: ModelRun) -> None:
        thread = self.threads.get(run.thread_id)
        if thread is not None:
            thread.states = [state for state in thread.states if state.run is not run]

    def _tell(self, run: ModelRun, *names: str) -> None:
        run.events += [(name, len(run.attempts)) for name in names]


def _order(run: ModelRun) -> tuple[int, tuple[float, int]]:
    return -run.priority, run.place
