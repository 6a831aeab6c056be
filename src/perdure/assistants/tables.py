"""The tables of assistants."""

from perdure.kernel.storage.schema import Index, Table, integer, text

ASSISTANTS = Table(
    "assistants",
    (
        integer("ns"),
        text("id"),
        text("agent"),
        text("name"),
        text("folded"),
        integer("version"),
        integer("created"),
        integer("updated"),
        integer("system"),
        text("description", null=True),
        text("config"),
        text("context"),
        text("metadata"),
    ),
    key=("ns", "id"),
    indexes=(
        Index("assistants_created", ("ns", "created", "id")),
        Index("assistants_agent", ("ns", "agent", "created", "id")),
    ),
)
"""Assistants in their current version. `folded` is the case-folded name for filters."""

ASSISTANT_VERSIONS = Table(
    "assistant_versions",
    (integer("ns"), text("id"), integer("version"), integer("time"), text("body")),
    key=("ns", "id", "version"),
)
"""Versions of assistants as JSON."""

AGENT_DESCRIPTIONS = Table(
    "agent_descriptions",
    (
        integer("ns"),
        text("agent"),
        text("kind"),
        text("digest", null=True),
        integer("updated"),
        text("body", null=True),
    ),
    key=("ns", "agent"),
)
"""The kind, schemas and drawings that a worker registered last for each agent; the body is JSON."""

TABLES = (ASSISTANTS, ASSISTANT_VERSIONS, AGENT_DESCRIPTIONS)
