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
"""Each assistant as it is now. `folded` is its name without regard to case, to be searched."""

ASSISTANT_VERSIONS = Table(
    "assistant_versions",
    (integer("ns"), text("id"), integer("version"), integer("time"), text("body")),
    key=("ns", "id", "version"),
)
"""What an assistant was in each of its versions, as JSON."""

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
"""The kind, schemas and drawings that a worker registered last of each agent; the body is JSON."""

TABLES = (ASSISTANTS, ASSISTANT_VERSIONS, AGENT_DESCRIPTIONS)
