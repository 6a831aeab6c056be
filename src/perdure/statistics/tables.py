"""Tables of statistics. A `minute` or `hour` is its start, in microseconds."""

from __future__ import annotations

from perdure.kernel.storage.schema import Index, Table, integer, text
from perdure.spans import usage

QUEUE_MINUTES = Table(
    "queue_minutes",
    (
        integer("ns"),
        integer("minute"),
        text("queue"),
        integer("ready"),
        integer("delayed"),
        integer("waiting"),
        integer("oldest"),
        integer("claimed"),
        integer("waited"),
        integer("succeeded"),
        integer("failed"),
        integer("cancelled"),
    ),
    key=("ns", "minute", "queue"),
    indexes=(Index("queue_minutes_order", ("minute",)),),
)
"""A queue in a minute: depths at its end, claims and ends during it. Times are microseconds.

A minute in which the depths were read has a row of the system with an empty `queue`.
"""

QUEUE_WAITS = Table(
    "queue_waits",
    (integer("ns"), integer("minute"), text("queue"), integer("bucket"), integer("claimed")),
    key=("ns", "minute", "queue", "bucket"),
    indexes=(Index("queue_waits_order", ("minute",)),),
)
"""Number of rollouts claimed in a minute by bucket of waiting time; `bucket` is an index of
`SECONDS_BUCKETS`."""

USAGE_HOURS = Table(
    "usage_hours",
    (
        integer("ns"),
        integer("hour"),
        text("kind"),
        text("model"),
        text("agent"),
        text("user_id"),
        *usage.COLUMNS,
    ),
    key=("ns", "hour", "kind", "model", "agent", "user_id"),
    indexes=(Index("usage_hours_order", ("hour",)),),
)
"""Usage of spans in an hour, by kind of step, model, agent and user. Costs are 10⁻⁹ dollars."""

TABLES = (QUEUE_MINUTES, QUEUE_WAITS, USAGE_HOURS)
