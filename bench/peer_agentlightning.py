"""The peer: agentlightning's in-memory store, driven through a pipe, or served.

Run as `python -m bench.peer_agentlightning` in the peer's own environment. The peer's client does jobs that
have an address. With `--port` it is the peer's server.
"""

import asyncio
import importlib
import os
import sys
from typing import Any

from bench import work
from bench.peer_loop import work_off


class Peer:
    """The peer's store on every work that ours does too."""

    def __init__(self) -> None:
        os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
        self._kit: Any = importlib.import_module("agentlightning.types")
        self._stores: Any = importlib.import_module("agentlightning.store")
        self._seeded: dict[int, Any] = {}

    def open(self) -> Any:
        return self._stores.InMemoryLightningStore()

    async def do(self, name: str, size: int, url: str | None = None) -> float:
        if url is not None:
            return await self._do_by_client(name, size, url)
        if name == "seed_queries":
            return await self._seed(size)
        if name == "query":
            return await work.query(self._seeded[size], times=len(work.QUERIED_STATUSES))
        return await work.RATES[name](self.open(), self._kit, size)

    async def _do_by_client(self, name: str, size: int, url: str) -> float:
        client = self._stores.LightningStoreClient(url)
        try:
            return await work.HTTP_RATES[name](client, self._kit, size)
        finally:
            await client.close()

    async def serve(self, port: int) -> None:
        """Run the peer's server, as its own command does."""
        store = self._stores.InMemoryLightningStore(thread_safe=True)
        server = self._stores.LightningStoreServer(store, host="127.0.0.1", port=port, launch_mode="asyncio")
        await server.run_forever()

    async def _seed(self, size: int) -> float:
        if size not in self._seeded:
            store = self._seeded[size] = self.open()
            await work.seed_queries(store, self._kit, size)
        return float(size)


def main() -> None:
    peer = Peer()
    if sys.argv[1:2] == ["--port"]:
        asyncio.run(peer.serve(int(sys.argv[2])))
    else:
        asyncio.run(work_off(peer.do))


if __name__ == "__main__":
    main()
