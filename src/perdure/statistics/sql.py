"""SQL of statistics, written once for both engines."""

from __future__ import annotations

from perdure.kernel.storage.dialect import BulkInsert, name_statements, statement
from perdure.statistics.model import (
    AddedUsageRow,
    MinuteRow,
    QueueStepRow,
    StepWaitRow,
    UsageHourRow,
    UsageStepRow,
    WaitRow,
)
from perdure.statistics.tables import QUEUE_MINUTES, QUEUE_WAITS, USAGE_HOURS

# Take a minute: only one process inserts the row, and reads the depths.
TAKE_MINUTE = BulkInsert(QUEUE_MINUTES, MinuteRow, on_conflict="NOTHING")
# Add to minutes of queues. One process writes the depths: all others add zeros.
ADD_MINUTES = BulkInsert(
    QUEUE_MINUTES,
    MinuteRow,
    on_conflict="""
    UPDATE SET ready = {larger:queue_minutes.ready,excluded.ready},
      delayed = {larger:queue_minutes.delayed,excluded.delayed},
      waiting = {larger:queue_minutes.waiting,excluded.waiting},
      oldest = {larger:queue_minutes.oldest,excluded.oldest},
      claimed = queue_minutes.claimed + excluded.claimed,
      waited = queue_minutes.waited + excluded.waited,
      succeeded = queue_minutes.succeeded + excluded.succeeded,
      failed = queue_minutes.failed + excluded.failed,
      cancelled = queue_minutes.cancelled + excluded.cancelled
    """,
)
# Add to the buckets of waits.
ADD_WAITS = BulkInsert(
    QUEUE_WAITS, WaitRow, on_conflict="UPDATE SET claimed = queue_waits.claimed + excluded.claimed"
)
# The steps in which depths were read.
LOOKED_AT = statement(
    """
    SELECT DISTINCT minute / :step AS step FROM queue_minutes
    WHERE ns = :system AND minute >= :since AND minute < :until ORDER BY step LIMIT :n
    """,
    row=int,
)
# The minutes of queues, summed up in steps.
LIST_STEPS = statement(
    """
    SELECT queue, minute / :step AS step, max(ready) AS ready, max(delayed) AS delayed,
      max(waiting) AS waiting, max(oldest) AS oldest, CAST(sum(claimed) AS BIGINT) AS claimed,
      CAST(sum(waited) AS BIGINT) AS waited, CAST(sum(succeeded) AS BIGINT) AS succeeded,
      CAST(sum(failed) AS BIGINT) AS failed, CAST(sum(cancelled) AS BIGINT) AS cancelled
    FROM queue_minutes
    WHERE ns = :ns AND minute >= :since AND minute < :until
    GROUP BY queue, minute / :step
    ORDER BY step, queue LIMIT :n
    """,
    row=QueueStepRow,
)
# The buckets of waits, summed up in steps.
LIST_STEP_WAITS = statement(
    """
    SELECT queue, minute / :step AS step, bucket, CAST(sum(claimed) AS BIGINT) AS claimed
    FROM queue_waits
    WHERE ns = :ns AND minute >= :since AND minute < :until
    GROUP BY queue, minute / :step, bucket
    ORDER BY step, queue, bucket LIMIT :n
    """,
    row=StepWaitRow,
)
# Usage that is not added to the hours yet, in all namespaces.
TAKE_USAGE = statement(
    """
    SELECT u.steps, u.errors, u.micros, u.input_tokens, u.output_tokens, u.cached_tokens, u.cost,
      u.ns, u.rollout_id, u.hour, u.kind, u.model, u.agent, u.user_id,
      (SELECT r.agent FROM rollouts AS r WHERE r.ns = u.ns AND r.id = u.rollout_id) AS rollout_agent
    FROM usage_added AS u
    ORDER BY u.ns, u.rollout_id, u.hour, u.kind, u.model, u.agent, u.user_id LIMIT :n {skip}
    """,
    row=AddedUsageRow,
)
# Delete usage that was added to the hours.
DROP_USAGE = statement(
    """
    DELETE FROM usage_added
    WHERE ns = :ns AND rollout_id = :rollout_id AND hour = :hour AND kind = :kind AND model = :model
      AND agent = :agent AND user_id = :user_id
    """
)
# Add usage to hours.
ADD_HOURS = BulkInsert(
    USAGE_HOURS,
    UsageHourRow,
    on_conflict="""
    UPDATE SET steps = usage_hours.steps + excluded.steps,
      errors = usage_hours.errors + excluded.errors,
      micros = usage_hours.micros + excluded.micros,
      input_tokens = usage_hours.input_tokens + excluded.input_tokens,
      output_tokens = usage_hours.output_tokens + excluded.output_tokens,
      cached_tokens = usage_hours.cached_tokens + excluded.cached_tokens,
      cost = usage_hours.cost + excluded.cost
    """,
)
_SUMS = """
    SELECT CAST(sum(steps) AS BIGINT) AS steps, CAST(sum(errors) AS BIGINT) AS errors,
    CAST(sum(micros) AS BIGINT) AS micros, CAST(sum(input_tokens) AS BIGINT) AS input_tokens,
    CAST(sum(output_tokens) AS BIGINT) AS output_tokens,
    CAST(sum(cached_tokens) AS BIGINT) AS cached_tokens, CAST(sum(cost) AS BIGINT) AS cost,
    hour / :step AS step, """
_HOURS = """ AS name
    FROM usage_hours
    WHERE ns = :ns AND hour >= :since AND hour < :until
    """
_CALLS = " AND kind {among:kinds} "
# Usage of model calls by model, summed up in steps.
USAGE_BY_MODEL = statement(
    _SUMS + "model" + _HOURS + _CALLS + " GROUP BY hour / :step, model ORDER BY step, name LIMIT :n",
    row=UsageStepRow,
)
# Usage of model calls by agent, summed up in steps.
USAGE_BY_AGENT = statement(
    _SUMS + "agent" + _HOURS + _CALLS + " GROUP BY hour / :step, agent ORDER BY step, name LIMIT :n",
    row=UsageStepRow,
)
# Usage of model calls by user, summed up in steps.
USAGE_BY_USER = statement(
    _SUMS + "user_id" + _HOURS + _CALLS + " GROUP BY hour / :step, user_id ORDER BY step, name LIMIT :n",
    row=UsageStepRow,
)
# Usage of all kinds of steps by kind, summed up in steps.
USAGE_BY_KIND = statement(
    _SUMS + "kind" + _HOURS + " GROUP BY hour / :step, kind ORDER BY step, name LIMIT :n",
    row=UsageStepRow,
)
# Number of hours before a time.
OLD_HOURS = statement("SELECT count(*) FROM usage_hours WHERE hour < :before", row=int)
# Delete some of the hours before a time.
TRIM_HOURS = statement(
    """
    DELETE FROM usage_hours WHERE hour <= (SELECT max(hour) FROM
      (SELECT hour FROM usage_hours WHERE hour < :before ORDER BY hour LIMIT :n) AS old)
    """
)
# Number of minutes before a time.
OLD_MINUTES = statement("SELECT count(*) FROM queue_minutes WHERE minute < :before", row=int)
# Delete some of the minutes before a time.
TRIM_MINUTES = statement(
    """
    DELETE FROM queue_minutes WHERE minute <= (SELECT max(minute) FROM
      (SELECT minute FROM queue_minutes WHERE minute < :before ORDER BY minute LIMIT :n) AS old)
    """
)
# Delete some of the waits before a time.
TRIM_WAITS = statement(
    """
    DELETE FROM queue_waits WHERE minute <= (SELECT max(minute) FROM
      (SELECT minute FROM queue_waits WHERE minute < :before ORDER BY minute LIMIT :n) AS old)
    """
)

name_statements(globals())
