"""Why a rollout is where it is, in a sentence or two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure import Attempt, Rollout, Span, is_queuing, is_running
from perdure.cli.output import stretch


def explain(rollout: Rollout, attempts: Sequence[Attempt], now: float, *, workers: int | None = None) -> str:
    """What it waits for, or how it ended; `workers` is how many are known, if that is known."""
    latest = attempts[-1] if attempts else None
    if is_queuing(rollout):
        return _waiting(rollout, latest, now, workers)
    if is_running(rollout):
        return _running(rollout, latest, now)
    if rollout.status == "cancelled":
        return f"It was cancelled{_since(rollout.end_time, now)}."
    if latest is None or (rollout.status == "succeeded") != (latest.status == "succeeded"):
        return f"It was set to {rollout.status} by hand{_since(rollout.end_time, now)}."
    return _ended(rollout, latest)


def last_error(spans: Iterable[Span]) -> str | None:
    """What the latest span that failed says of it."""
    failed = [span for span in spans if span.status.status_code == "ERROR"]
    if not failed:
        return None
    span = max(failed, key=lambda span: (span.end_time or span.start_time or 0.0, span.sequence_id))
    return f"{span.name}: {span.status.description or 'error'}"


def _since(then: float | None, now: float) -> str:
    return "" if then is None else f" {stretch(now - then)} ago"


def _waiting(rollout: Rollout, latest: Attempt | None, now: float, workers: int | None) -> str:
    if latest is None:
        text = (
            f"It has waited in the queue for {stretch(now - rollout.start_time)}, until a worker claims it."
        )
    else:
        text = (
            f"Attempt {latest.sequence_id} ended as {latest.status}; it waits in the queue for the next of "
            f"up to {rollout.config.max_attempts}."
        )
    return f"{text} No worker has ever come here." if workers == 0 else text


def _running(rollout: Rollout, latest: Attempt | None, now: float) -> str:
    if latest is None:
        return f"It was set to {rollout.status} by hand; no attempt is under way."
    who = f"with {latest.worker_id}" if latest.worker_id else "under way"
    heard = latest.last_heartbeat_time
    text = f"Attempt {latest.sequence_id} has been {who} for {stretch(now - latest.start_time)}"
    text += f", last heard of {stretch(now - heard)} ago." if heard else ", and has not been heard of yet."
    return " ".join((text, *_deadlines(rollout, latest, now)))


def _deadlines(rollout: Rollout, latest: Attempt, now: float) -> Iterable[str]:
    config = rollout.config
    if config.timeout_seconds is not None:
        yield f"It times out in {stretch(latest.start_time + config.timeout_seconds - now)}."
    if config.unresponsive_seconds is not None:
        heard = latest.last_heartbeat_time or latest.start_time
        yield f"It is given up after {stretch(heard + config.unresponsive_seconds - now)} more of silence."


def _ended(rollout: Rollout, latest: Attempt) -> str:
    took = f" after {stretch(latest.end_time - latest.start_time)}" if latest.end_time is not None else ""
    text = f"Attempt {latest.sequence_id} ended as {latest.status}{took}"
    if rollout.status == "succeeded":
        return f"{text}."
    if latest.status not in rollout.config.retry_condition:
        return f"{text}; {latest.status} is not in its retry_condition, so it was not tried again."
    return f"{text}; that was the last of {rollout.config.max_attempts} attempts."
