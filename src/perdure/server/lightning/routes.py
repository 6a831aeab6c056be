"""All routes of the Agent-lightning protocol, under /v1/agl."""

from __future__ import annotations

from perdure.server.http.routes import Route
from perdure.server.lightning.attempts import attempts
from perdure.server.lightning.health import store
from perdure.server.lightning.resources import resources
from perdure.server.lightning.rollouts import rollouts
from perdure.server.lightning.spans import spans
from perdure.server.lightning.workers import workers

_RESOURCES = (store, rollouts, attempts, resources, spans, workers)

ROUTES: tuple[Route, ...] = tuple(route for resource in _RESOURCES for route in resource.routes)
