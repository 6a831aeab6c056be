"""A real Redis Cluster for tests: three processes that share the slots."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import redis

from perdure.testing.redis_server import RedisServer

NODES = 3
SLOTS = 16_384
START_SECONDS = 60.0


@contextmanager
def redis_cluster() -> Iterator[str]:
    """Start a cluster, and yield the URL of its first node."""
    with ExitStack() as stack:
        servers = [stack.enter_context(RedisServer(cluster=True)) for _ in range(NODES)]
        clients: list[Any] = [stack.enter_context(redis.Redis.from_url(each.url)) for each in servers]
        share = SLOTS // NODES
        for number, client in enumerate(clients):
            last = SLOTS - 1 if number == NODES - 1 else (number + 1) * share - 1
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", number * share, last)
        for server in servers[1:]:
            clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", server.port, server.bus_port)
        deadline = time.monotonic() + START_SECONDS
        while not all(map(_is_up, clients)):
            assert time.monotonic() < deadline, clients[0].execute_command("CLUSTER", "INFO")
            time.sleep(0.05)
        yield servers[0].url


def _is_up(client: Any) -> bool:
    found = client.execute_command("CLUSTER", "INFO")
    text = found if isinstance(found, str) else found.decode() if isinstance(found, bytes) else str(found)
    state = text.replace("'", "").replace(": ", ":")
    return "cluster_state:ok" in state and f"cluster_known_nodes:{NODES}" in state
