"""Explanations: from facts to a rule and a sentence. Times are microseconds.

This module is pure: no I/O, no clock, no randomness.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from perdure.diagnostics.model import (
    AttemptFacts,
    LineFacts,
    RequestFacts,
    RolloutFacts,
    ThreadFacts,
    Why,
    WorkerFacts,
    shown,
    shown_thread,
)
from perdure.executions.model import PHASE
from perdure.jobs.model import JOB
from perdure.kernel.clock import MICROS, human_duration, to_micros
from perdure.kernel.codec import encode_json
from perdure.rollouts.model import (
    ENDED,
    FAILED,
    LAPSED,
    LIVE,
    QUEUED,
    RELEASED,
    SUCCEEDED,
    TIMEOUT,
    UNRESPONSIVE,
    compute_deadline,
    lapse_event,
)
from perdure.schedules.records import Schedule
from perdure.threads.model import EXCEEDED, RUN, RUN_KINDS, run_status
from perdure.threads.records import Failure

MANY = 1000
"""Limit of counts."""
SHOWN = 200
"""Limit of characters of a value in a sentence."""
SHOWN_AGENTS = 20
"""Limit of agents that a sentence names."""
OVERDUE_SECONDS = 10.0
"""A schedule that is due for longer counts as not fired by any server."""


Explanation = tuple[str, str]
"""A rule and its sentence."""


def explain_rollout(facts: RolloutFacts, now: int) -> Why:
    """Explain the status of a rollout or run."""
    is_run = facts.kind in RUN_KINDS
    rule, sentence = explain(facts, now)
    other: Literal["request", "rollout"] = "request" if facts.request is not None else "rollout"
    return Why(
        id=facts.id,
        kind="phase" if facts.kind == PHASE else "run" if is_run else other,
        status=run_status(facts.status, facts.outcome) if is_run else facts.status,
        rule=rule,
        sentence=sentence,
        facts=shown(facts),
    )


def explain(facts: RolloutFacts, now: int) -> Explanation:
    if not facts.known:
        return "unknown_kind", (
            f"{noun(facts)} is of the kind {facts.kind!r}, which this server does not know: it neither "
            "starts nor ends it. Use a server of the version that created it."
        )
    if facts.request is not None:
        return _explain_request(facts, facts.request, now)
    if facts.status in QUEUED:
        return _explain_waiting(facts, now)
    if facts.status in LIVE:
        return _explain_executing(facts, now)
    return _explain_ended(facts, now)


_NOUNS = {RUN: "Run", PHASE: "Phase", JOB: "Job"}


def noun(facts: RolloutFacts) -> str:
    return f"{_NOUNS.get(facts.kind, 'Rollout')} {facts.id}"


# --- times and values -------------------------------------------------------------------------------------


def at(time: int, now: int) -> str:
    """Format a time with its distance from now."""
    away = abs(time - now) / MICROS
    far = f"in {human_duration(away)}" if time > now else f"{human_duration(away)} ago"
    return f"{datetime.fromtimestamp(time // MICROS, UTC):%Y-%m-%dT%H:%M:%SZ} ({far})"


def _shorten(value: Any) -> str:
    text = " ".join((value if isinstance(value, str) else encode_json(value, nan="keep")).split())
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def _format_failure(failure: Failure | None) -> str:
    return "" if failure is None else f" with {failure.error}: {_shorten(failure.message)}"


def _format_ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _many(number: int) -> str:
    return f"more than {MANY:,}" if number > MANY else f"{number:,}"


def _nth(facts: RolloutFacts, number: int) -> str:
    return f"attempt {number} of {facts.limits.max_attempts}"


# --- waiting ----------------------------------------------------------------------------------------------


def _explain_waiting(facts: RolloutFacts, now: int) -> Explanation:
    if facts.behind is not None and facts.in_line is not None:
        return _explain_line(facts, facts.in_line, now)
    if facts.due_at is not None and facts.due_at > now:
        return _explain_delay(facts, facts.due_at, now)
    if facts.paused is not None:
        return "paused", (
            f"{noun(facts)} is waiting: the queue is paused since {at(facts.paused, now)}. "
            f"Resume it with `perdure queue resume {facts.queue}`."
        )
    if facts.kind == JOB:
        return "waits_for_server", (
            f"{noun(facts)} ({facts.agent}) is ready, and waits for a server that has this job and is free. "
            "Every server executes the jobs that it knows: start one with `perdure serve`, or update it."
        )
    return _explain_queue(facts, now)


def _explain_line(facts: RolloutFacts, line: LineFacts, now: int) -> Explanation:
    place = f"{noun(facts)} is waiting: {_format_ordinal(line.ahead + 1)} in line in thread {facts.line}"
    strategy = f" (multitask_strategy {facts.run.strategy})" if facts.run is not None else ""
    if line.holder_status in ENDED:
        until = "" if line.release_by is None else f", until {at(line.release_by, now)} at the latest"
        return "stopping", (f"{place}, until the cancelled run {line.holder} has stopped{until}{strategy}.")
    state = "" if line.holder_status is None else f", which is {run_status(line.holder_status, None)}"
    return "behind", f"{place}, behind run {line.holder}{state}{strategy}."


def _explain_delay(facts: RolloutFacts, due_at: int, now: int) -> Explanation:
    if facts.latest is None:
        return "not_before", f"{noun(facts)} is delayed until {at(due_at, now)}."
    return "backoff", (
        f"{noun(facts)} is backing off until {at(due_at, now)} before {_nth(facts, facts.tries + 1)}: "
        f"{_format_last_attempt(facts.latest, now)}."
    )


def _format_last_attempt(latest: AttemptFacts, now: int) -> str:
    when = "" if latest.end_time is None else f" at {at(latest.end_time, now)}"
    return f"attempt {latest.number} {_how(latest)}{when}{_format_failure(latest.failure)}"


def _how(latest: AttemptFacts) -> str:
    return {TIMEOUT: "took too long", UNRESPONSIVE: "stopped sending heartbeats"}.get(latest.status, "failed")


def _explain_queue(facts: RolloutFacts, now: int) -> Explanation:
    rule, before = _explain_history(facts, now)
    workers = facts.workers
    if workers.other_agents is not None:
        names = ", ".join(workers.other_agents[:SHOWN_AGENTS]) or "none"
        more = len(workers.other_agents) - SHOWN_AGENTS
        names = f"{names} and {more} more" if more > 0 else names
        return "no_agent", (
            f"{before}; no live worker has agent {facts.agent!r}; live workers have: {names}. "
            "Start one that has it with `perdure worker`."
        )
    if not workers.alive:
        last = _last_worker(facts, now)
        return "no_worker", f"{before}; no worker is alive for queue {facts.queue!r}{last}."
    agent = "" if facts.agent is None else f" of agent {facts.agent!r}"
    ahead = (
        "it is next in queue" if not facts.ahead else f"{_many(facts.ahead)}{agent} are ahead of it in queue"
    )
    return rule, f"{before}; {ahead} {facts.queue!r}; {_format_workers(workers)}."


def _explain_history(facts: RolloutFacts, now: int) -> Explanation:
    """Explain how the rollout got into the queue."""
    latest = facts.latest
    if latest is None:
        return "in_queue", f"{noun(facts)} is waiting for a worker"
    worker = f"worker {latest.worker_id}" if latest.worker_id else "its worker"
    when = "" if latest.end_time is None else f" at {at(latest.end_time, now)}"
    if latest.reason == RELEASED:
        return "handed_back", (
            f"{noun(facts)} was released by {worker}{when} without using up an attempt, and is waiting for a "
            "worker"
        )
    again = f"is waiting for a worker for {_nth(facts, facts.tries + 1)}"
    if latest.status == UNRESPONSIVE:
        heard = at(latest.heard or latest.start_time, now)
        return (
            "worker_lost",
            f"{noun(facts)} was taken from {worker}, last heard from at {heard}, and {again}",
        )
    if facts.status in QUEUED and latest.end_time is None and latest.status != TIMEOUT:
        return "by_hand", f"{noun(facts)} was put back into the queue, and is waiting for a worker"
    return "retry", f"{noun(facts)} {again} after {_format_last_attempt(latest, now)}"


def _last_worker(facts: RolloutFacts, now: int) -> str:
    workers = facts.workers
    if workers.last_id is None or workers.last_heard is None:
        heard = ": none has connected yet"
    else:
        left = "has stopped; it was" if workers.stopped else "was"
        heard = f": the last one, {workers.last_id}, {left} last heard from at {at(workers.last_heard, now)}"
    advice = ". Start one that claims from this queue"
    if facts.kind in RUN_KINDS:
        option = f" --queue {facts.queue}" if facts.kind == PHASE else ""
        advice = f". Start one with `perdure worker{option}`"
    return heard + advice


def _format_workers(workers: WorkerFacts) -> str:
    text = "1 worker is alive" if workers.alive == 1 else f"{workers.alive} workers are alive"
    return text if workers.places is None else f"{text}, with {workers.free} of {workers.places} slots free"


# --- executing --------------------------------------------------------------------------------------------


def _explain_executing(facts: RolloutFacts, now: int) -> Explanation:
    latest = facts.latest
    if latest is None or latest.status not in LIVE:
        return "by_hand", f"{noun(facts)} was set to {facts.status} by hand; no attempt is running."
    number = facts.tries if facts.kind in RUN_KINDS else latest.number
    worker = f"worker {latest.worker_id}" if latest.worker_id else "an unnamed worker"
    start = f"{noun(facts)}: {_nth(facts, number)} is running on {worker} since {at(latest.start_time, now)}"
    heard = "no heartbeat yet" if latest.heard is None else f"last heard from at {at(latest.heard, now)}"
    lapse = lapse_event(facts.limits, now, latest.start_time, latest.heard)
    if lapse is not None:
        due = compute_deadline(facts.limits, latest.start_time, latest.heard) or now
        limit = "its timeout passed" if lapse == "too long" else "its lease ended"
        return (
            "overdue",
            f"{start}, {heard}; {limit} at {at(due, now)}, and the watchdog ends it at its next check.",
        )
    return "running", "; ".join((f"{start}, {heard}", *_format_deadlines(facts, latest, now))) + "."


def _format_deadlines(facts: RolloutFacts, latest: AttemptFacts, now: int) -> list[str]:
    limits, sentences = facts.limits, []
    if limits.unresponsive_seconds is not None:
        since = latest.start_time if latest.heard is None else latest.heard
        sentences.append(f"its lease lasts until {at(since + to_micros(limits.unresponsive_seconds), now)}")
    seconds = limits.timeout_seconds if facts.run is None else facts.run.timeout
    if seconds is not None:
        sentences.append(f"its timeout is at {at(latest.start_time + to_micros(seconds), now)}")
    elif facts.run is not None:
        # Only the worker that executes the attempt knows the agent's timeout.
        sentences.append("its timeout is that of its agent")
    return sentences or ["it has no timeout"]


# --- ended ------------------------------------------------------------------------------------------------


def _explain_ended(facts: RolloutFacts, now: int) -> Explanation:
    rule, text = _explain_end(facts, now)
    run = facts.run
    if facts.kind not in RUN_KINDS:
        return rule, f"{text}."
    if run is None:
        return rule, f"{text}. It was deleted since; its trace is kept."
    if run.gone_at is not None and run.temporary:
        return rule, f"{text}. Its temporary thread was deleted; its trace is kept."
    if run.gone_at is not None:
        who = "" if facts.audit.actor is None else f" by {facts.audit.actor}"
        whole = " with its thread" if facts.audit.action == "delete_thread" else ""
        return (
            "deleted",
            f"{noun(facts)} was deleted{whole}{who} at {at(run.gone_at, now)}; its trace is kept.",
        )
    return rule, f"{text}{_format_stopping(facts, now)}."


def _explain_end(facts: RolloutFacts, now: int) -> Explanation:
    when = "" if facts.end_time is None else f" at {at(facts.end_time, now)}"
    outcome, status = facts.outcome, run_status(facts.status, facts.outcome)
    if status in ("interrupted", "rollback"):
        return _explain_stopped(facts, when, status if facts.kind in RUN_KINDS else "cancelled")
    if status == "success":
        return "success", f"{noun(facts)} succeeded{when}{_format_tries(facts)}"
    if outcome == TIMEOUT:
        seconds = facts.limits.timeout_seconds if facts.run is None else facts.run.timeout
        limit = "" if seconds is None else f" after its limit of {seconds:g} s"
        return "timeout", f"{noun(facts)} timed out{when}{limit}{_format_tries(facts)}"
    return _explain_error(facts, when)


def _format_tries(facts: RolloutFacts) -> str:
    return f", at {_nth(facts, facts.tries)}" if facts.attempts > 1 else ""


def _explain_error(facts: RolloutFacts, when: str) -> Explanation:
    failure = facts.run.failure if facts.run is not None else None
    if failure is not None and failure.error == EXCEEDED:
        return "exceeded_attempts", f"{noun(facts)} failed{when}: {failure.message.rstrip('.')}"
    if failure is not None:
        return "error", f"{noun(facts)} failed{when}{_format_tries(facts)}{_format_failure(failure)}"
    if facts.latest is None or facts.latest.status not in (FAILED, *LAPSED):
        return "by_hand", f"{noun(facts)} was set to {facts.status} by hand{when}"
    retried = facts.limits.retry_condition
    if facts.latest.status in retried and facts.tries >= facts.limits.max_attempts:
        why = f"that was the last of {facts.limits.max_attempts} attempts"
        return (
            "exceeded_attempts",
            f"{noun(facts)} failed{when}: attempt {facts.latest.number} {_how(facts.latest)}, and {why}",
        )
    why = f"{facts.latest.status!r} is not in its retry_condition"
    return (
        "error",
        f"{noun(facts)} failed{when}: attempt {facts.latest.number} {_how(facts.latest)}, and {why}",
    )


def _explain_stopped(facts: RolloutFacts, when: str, rule: str) -> Explanation:
    word = {"interrupted": "was interrupted", "rollback": "was rolled back"}.get(rule, "was cancelled")
    match = facts.audit
    who = "" if match.actor is None else f" by {match.actor}"
    if match.instead is not None:
        who = f"{who} to make way for run {match.instead} (multitask_strategy {match.strategy})"
    began = "" if facts.attempts else " before it began"
    return rule, f"{noun(facts)} {word}{who}{when}{began}"


def _format_stopping(facts: RolloutFacts, now: int) -> str:
    """Return a note if the worker of a cancelled run has not stopped yet."""
    latest = facts.latest
    if latest is None or latest.status not in LIVE or latest.check_at is None:
        return ""
    until = at(latest.check_at, now)
    return f"; worker {latest.worker_id} has not stopped yet, and its thread waits for it until {until}"


# --- requests for graphs ----------------------------------------------------------------------------------


def _explain_request(facts: RolloutFacts, request: RequestFacts, now: int) -> Explanation:
    name = f"Request {facts.id} to agent {request.agent!r} about thread {request.thread_id}"
    until = f"its caller waits until {at(request.expires_at, now)}"
    when = "" if facts.end_time is None else f" at {at(facts.end_time, now)}"
    if facts.status in QUEUED:
        return "request_waiting", f"{name} is waiting for a worker that has this agent; {until}."
    if facts.status in LIVE and facts.latest is not None:
        since = at(facts.latest.start_time, now)
        return "request_running", f"{name} is executed by a worker since {since}; {until}."
    if facts.status == SUCCEEDED:
        return "request_answered", f"{name} was answered{when}."
    return "request_expired", f"{name} ended{when} without an answer, and nothing was changed."


# --- threads ----------------------------------------------------------------------------------------------


def explain_thread(facts: ThreadFacts, now: int) -> Why:
    """Explain the status of a thread."""
    rule, sentence = _explain_thread_state(facts, now)
    status = facts.status if facts.gone_at is None else "deleted"
    return Why(
        id=facts.id, kind="thread", status=status, rule=rule, sentence=sentence, facts=shown_thread(facts)
    )


def _explain_thread_state(facts: ThreadFacts, now: int) -> Explanation:
    name = f"Thread {facts.id}"
    if facts.gone_at is not None:
        who = "" if facts.audit.actor is None else f" by {facts.audit.actor}"
        return "deleted", f"{name} was deleted{who} at {at(facts.gone_at, now)}."
    if facts.busy is not None:
        waiting = facts.live - 1
        others = (
            f", and {_many(waiting)} {'waits' if waiting == 1 else 'wait'} behind it" if waiting > 0 else ""
        )
        return "busy", f"{name} is busy with run {facts.busy.id}{others}. {explain(facts.busy, now)[1]}"
    if facts.status == "interrupted":
        return _explain_interrupted(facts, name, now)
    if facts.status == "error":
        # A turn of a chat or a phase of a workflow is not a run of the thread.
        last = "what it executed last" if facts.last_run is None else f"its last run {facts.last_run}"
        return "error", f"{name} is in error since {last} failed{_format_failure(facts.failure)}."
    if facts.last_run is None:
        return "never_run", f"{name} is idle: it has no runs."
    return "idle", f"{name} is idle since {_format_last_run(facts, now)}."


def _format_last_run(facts: ThreadFacts, now: int) -> str:
    when = "" if facts.last_end is None else f" at {at(facts.last_end, now)}"
    return f"its last run {facts.last_run} ended as {facts.last_status}{when}"


def _explain_interrupted(facts: ThreadFacts, name: str, now: int) -> Explanation:
    if facts.interrupts:
        first = facts.interrupts[0]
        more = f" and {len(facts.interrupts) - 1} more" if len(facts.interrupts) > 1 else ""
        return "waits_for_answer", (
            f"{name} is waiting for an answer to {_shorten(first.value)} (interrupt {first.id}){more}: "
            "answer it with a run whose command has `resume`."
        )
    coming = f"; next: {', '.join(facts.next)}" if facts.next else ""
    return "interrupted", f"{name} is interrupted since {_format_last_run(facts, now)}{coming}."


# --- schedules --------------------------------------------------------------------------------------------


def explain_schedule(schedule: Schedule, now: float) -> Why:
    """Explain when a schedule fires next, or why it does not fire. `now` is in seconds."""
    status, rule, sentence = _explain_schedule_state(schedule, now)
    if schedule.error is not None:
        sentence += f" Its last firing failed: {schedule.error}."
    facts = schedule.model_dump(exclude=("payload", "metadata"), exclude_none=True)
    return Why(
        id=schedule.schedule_id,
        kind="schedule",
        status=status,
        rule=rule,
        sentence=sentence.replace("..", "."),
        facts=facts,
    )


def _explain_schedule_state(schedule: Schedule, now: float) -> tuple[str, str, str]:
    name = (
        f"Cron {schedule.name or schedule.schedule_id} ({schedule.expression}, {schedule.timezone or 'UTC'})"
    )
    next_at = schedule.next_at
    if not schedule.enabled:
        how = " by an override" if schedule.overridden else ""
        return "paused", "paused", f"{name} is paused{how}; resume it to let it fire."
    if next_at is None:
        return "ended", "ended", f"{name} has ended: {_format_schedule_end(schedule)}."
    if next_at > now:
        spread = f", or up to {human_duration(schedule.jitter)} later" if schedule.jitter else ""
        guarded = (
            " That time is skipped if what it started before has not ended by then."
            if schedule.running and schedule.overlap == "skip"
            else ""
        )
        return (
            "waiting",
            "waits_for_time",
            f"{name} fires at {_format_time(next_at)}, in {human_duration(next_at - now)}{spread}.{guarded}",
        )
    late = now - next_at - schedule.jitter
    if late < OVERDUE_SECONDS:
        return "due", "due", f"{name} is due now."
    return (
        "due",
        "nobody_fires",
        (
            f"{name} has been due for {human_duration(late)}, but no server is firing schedules of this "
            "database. Start one with `perdure serve`; it then fires once, however many times it missed."
        ),
    )


def _format_schedule_end(schedule: Schedule) -> str:
    if schedule.end_time is None:
        return "its expression never matches again"
    return f"its end_time was {_format_time(schedule.end_time)}"


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
