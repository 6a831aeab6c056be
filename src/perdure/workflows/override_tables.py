"""The table of overrides: workflows that were switched on or off."""

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
"""One row for each workflow that was switched; without a row it is enabled."""

TABLES = (OVERRIDES,)
