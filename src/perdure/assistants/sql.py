"""The SQL of assistants, written once for both engines."""

from __future__ import annotations

from perdure.assistants.model import AssistantRow, AssistantVersionRow, DescriptionRow, KindRow, NewVersionRow
from perdure.assistants.tables import AGENT_DESCRIPTIONS, ASSISTANT_VERSIONS
from perdure.kernel.storage.dialect import BulkInsert, name_statements, statement
from perdure.kernel.storage.filters import ListField, Listing, SortKey, SortOrder, order_by

# Assistants by their ids.
GET = statement("SELECT {columns} FROM assistants WHERE ns = :ns AND id {among:ids}", row=AssistantRow)
# Lock an assistant.
LOCK = statement("SELECT {columns} FROM assistants WHERE ns = :ns AND id = :id {lock}", row=AssistantRow)
# Lock assistants, in the order of their ids.
LOCK_MANY = statement(
    "SELECT {columns} FROM assistants WHERE ns = :ns AND id {among:ids} ORDER BY id {lock}", row=AssistantRow
)
# The agents of system assistants.
KNOWN_AGENTS = statement(
    "SELECT agent FROM assistants WHERE ns = :ns AND id {among:ids} AND system = 1", row=str
)
# The ids that are assistants in any namespace; an agent counts by its system assistant.
KNOWN_ANYWHERE = statement(
    """
    SELECT DISTINCT a.id FROM namespaces AS n JOIN assistants AS a ON a.ns = n.id WHERE a.id {among:ids}
    """,
    row=str,
)
# Insert an assistant, unless its id exists.
CREATE = statement(
    """
    INSERT INTO assistants
      (ns, id, agent, name, folded, version, created, updated, system, description, config, context, metadata)
    VALUES
      (:ns, :id, :agent, :name, :folded, 1, :now, :now, :system, :description, :config, :context, :metadata)
    ON CONFLICT (ns, id) DO NOTHING
    """
)
# Set an assistant to one of its versions.
SAVE = statement(
    """
    UPDATE assistants
    SET agent = :agent, name = :name, folded = :folded, version = :version, updated = :now, system = :system,
        description = :description, config = :config, context = :context, metadata = :metadata
    WHERE ns = :ns AND id = :id
    """
)
# Change the description of an assistant.
DESCRIBE = statement("UPDATE assistants SET description = :description WHERE ns = :ns AND id = :id")
# Delete an assistant.
DROP = statement("DELETE FROM assistants WHERE ns = :ns AND id = :id")

# Insert versions of assistants.
ADD_VERSIONS = BulkInsert(ASSISTANT_VERSIONS, NewVersionRow)
# The number of the latest version of an assistant.
LAST_VERSION = statement("SELECT max(version) FROM assistant_versions WHERE ns = :ns AND id = :id", row=int)
# A version of an assistant.
GET_VERSION = statement(
    "SELECT {columns} FROM assistant_versions WHERE ns = :ns AND id = :id AND version = :version",
    row=AssistantVersionRow,
)
# A page of the versions of an assistant before a number, newest first.
LIST_VERSIONS = statement(
    """
    SELECT {columns} FROM assistant_versions WHERE ns = :ns AND id = :id AND version < :before
    ORDER BY version DESC LIMIT :limit OFFSET :offset
    """,
    row=AssistantVersionRow,
)
# Change the body of a version.
REDESCRIBE = statement(
    "UPDATE assistant_versions SET body = :body WHERE ns = :ns AND id = :id AND version = :version"
)
# Delete the versions of an assistant.
DROP_VERSIONS = statement("DELETE FROM assistant_versions WHERE ns = :ns AND id = :id")

# The kinds of agents, and the digests of their descriptions.
GET_KINDS = statement(
    "SELECT {columns} FROM agent_descriptions WHERE ns = :ns AND agent {among:agents}", row=KindRow
)
# The description of an agent, as JSON.
GET_DESCRIPTION = statement("SELECT body FROM agent_descriptions WHERE ns = :ns AND agent = :agent", row=str)
# Delete the description of an agent.
DROP_DESCRIPTION = statement("DELETE FROM agent_descriptions WHERE ns = :ns AND agent = :agent")
# Insert or update the kinds of agents.
SAVE_KINDS = BulkInsert(AGENT_DESCRIPTIONS, DescriptionRow, on_conflict="UPDATE SET kind = excluded.kind")
# Insert or update the descriptions of agents.
SAVE_DESCRIPTIONS = BulkInsert(
    AGENT_DESCRIPTIONS,
    DescriptionRow,
    on_conflict="UPDATE SET kind = excluded.kind, digest = excluded.digest, updated = excluded.updated,"
    " body = excluded.body",
)

FIELDS = {
    "assistant_id": ListField("id", "text"),
    "agent": ListField("agent", "text"),
    "name": ListField("name", "text"),
    "folded": ListField("folded", "text"),
    "created_at": ListField("created", "time"),
    "updated_at": ListField("updated", "time"),
}


def order(sort_by: str, sort_order: str) -> SortOrder:
    """Return the order of a list of assistants; ties are in the order of creation."""
    created = SortKey("created", "time", descending=sort_order == "desc")
    return order_by(FIELDS, sort_by, sort_order, SortOrder((created, SortKey("id", "text"))))


# The assistants of a namespace.
LIST = Listing("{columns}", "assistants WHERE ns = :ns", AssistantRow)

name_statements(globals())
