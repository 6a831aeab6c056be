"""The SQL of assistants, written once for both engines."""

from __future__ import annotations

from perdure.assistants.tables import ASSISTANT_VERSIONS, ASSISTANTS
from perdure.kernel.storage.dialect import BulkInsert, name_statements, statement
from perdure.kernel.storage.filters import Field, Listing

VIEW = "id, agent, name, description, version, created, updated, system, config, context, metadata"

GET = statement("SELECT " + VIEW + " FROM assistants WHERE ns = :ns AND id {among:ids}")
LOCK = statement("SELECT " + VIEW + " FROM assistants WHERE ns = :ns AND id = :id {lock}")
LOCK_MANY = statement(
    "SELECT " + VIEW + " FROM assistants WHERE ns = :ns AND id {among:ids} ORDER BY id {lock}"
)
KNOWN_AGENTS = statement("SELECT agent FROM assistants WHERE ns = :ns AND id {among:ids} AND system = 1")
CREATE = statement(
    """
    INSERT INTO assistants
      (ns, id, agent, name, folded, version, created, updated, system, description, config, context, metadata)
    VALUES
      (:ns, :id, :agent, :name, :folded, 1, :now, :now, :system, :description, :config, :context, :metadata)
    ON CONFLICT (ns, id) DO NOTHING
    """
)
SAVE = statement(
    """
    UPDATE assistants
    SET agent = :agent, name = :name, folded = :folded, version = :version, updated = :now, system = :system,
        description = :description, config = :config, context = :context, metadata = :metadata
    WHERE ns = :ns AND id = :id
    """
)
DESCRIBE = statement("UPDATE assistants SET description = :description WHERE ns = :ns AND id = :id")
DROP = statement("DELETE FROM assistants WHERE ns = :ns AND id = :id")

ADD_VERSIONS = BulkInsert(ASSISTANT_VERSIONS)
LAST_VERSION = statement("SELECT max(version) FROM assistant_versions WHERE ns = :ns AND id = :id")
GET_VERSION = statement(
    "SELECT version, time, body FROM assistant_versions WHERE ns = :ns AND id = :id AND version = :version"
)
LIST_VERSIONS = statement(
    """
    SELECT version, time, body FROM assistant_versions WHERE ns = :ns AND id = :id
    ORDER BY version DESC LIMIT :limit OFFSET :offset
    """
)
REDESCRIBE = statement(
    "UPDATE assistant_versions SET body = :body WHERE ns = :ns AND id = :id AND version = :version"
)
DROP_VERSIONS = statement("DELETE FROM assistant_versions WHERE ns = :ns AND id = :id")

FIELDS = {
    "assistant_id": Field("id", "text"),
    "agent": Field("agent", "text"),
    "name": Field("name", "text"),
    "folded": Field("folded", "text"),
    "created_at": Field("created", "time"),
    "updated_at": Field("updated", "time"),
}
LIST = Listing(VIEW, ASSISTANTS.name + " WHERE ns = :ns")

name_statements(globals())
