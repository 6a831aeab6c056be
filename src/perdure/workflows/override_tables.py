"""Table of overrides: workflows switched on or off."""

from perdure.kernel.storage.schema import Table, integer, text

OVERRIDES = Table(
    "workflow_overrides",
    (
        integer("ns"),
        text("name"),
        integer("enabled", default=1),
        integer("updated_at"),
        text("updated_by", null=True),
    ),
    key=("ns", "name"),
)
"""One row for each switched workflow; a workflow without a row is enabled."""

TABLES = (OVERRIDES,)
