"""SQL of requests to workers, written once for both engines."""

from __future__ import annotations

from perdure.graph_requests.model import ExpiredRequestRow, GraphAnswerRow, NewAnswer, RequestRow
from perdure.graph_requests.tables import GRAPH_ANSWERS, GRAPH_REQUESTS
from perdure.kernel.storage.dialect import BulkInsert, name_statements, statement

# New requests.
ADD_REQUESTS = BulkInsert(GRAPH_REQUESTS, RequestRow)
# Requests by their ids.
GET_REQUESTS = statement(
    "SELECT {columns} FROM graph_requests WHERE ns = :ns AND id {among:ids}", row=RequestRow
)
# New answers to requests.
ADD_ANSWERS = BulkInsert(GRAPH_ANSWERS, NewAnswer)
# The attempt that answered a request.
ANSWERED_BY = statement("SELECT attempt_id FROM graph_answers WHERE ns = :ns AND id = :id", row=str)
# The status of a request, and its answer.
GET_ANSWER = statement(
    """
    SELECT r.status, a.error_code, a.error, a.answer
    FROM rollouts AS r
    LEFT JOIN graph_answers AS a ON a.ns = r.ns AND a.id = r.id
    WHERE r.ns = :ns AND r.id = :id
    """,
    row=GraphAnswerRow,
)
# Requests whose deadline has passed, in all namespaces.
EXPIRED = statement(
    "SELECT {columns} FROM graph_requests WHERE expires_at < :before ORDER BY expires_at LIMIT :n",
    row=ExpiredRequestRow,
)
# Delete requests.
DROP_REQUESTS = statement("DELETE FROM graph_requests WHERE ns = :ns AND id {among:ids}")
# Delete the answers to requests.
DROP_ANSWERS = statement("DELETE FROM graph_answers WHERE ns = :ns AND id {among:ids}")

name_statements(globals())
