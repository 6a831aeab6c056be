"""The table of namespaces."""

from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.schema import Index, Table, integer, text

NAMESPACES = Table(
    "namespaces",
    (integer("id"), text("name"), integer("create_time")),
    key=("id",),
    indexes=(Index("namespaces_name", ("name",), unique=True),),
)

TABLES = (NAMESPACES,)

FIND = statement("SELECT id FROM namespaces WHERE name = :name")
NEXT = statement("SELECT coalesce(max(id), 0) + 1 FROM namespaces")
ALL = statement("SELECT id, name FROM namespaces ORDER BY id")
