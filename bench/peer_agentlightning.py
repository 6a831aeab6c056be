"""The peer: agentlightning's in-memory store, driven from the other side of a pipe, or served.

Run as `python -m bench.peer_agentlightning` in the peer's own environment. Each line on standard input is a
job `{"work": name, "size": count, "url": address or null}`, done by the peer's client if there is an address;
each line on standard output is its answer `{"figure": number}`. With `--port` it is the peer's server.
"""

import asyncio
import importlib
import json
import os
import sys
from typing import Any, TextIO

from bench import work


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
        if name == "hello":
            return 0.0
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
        """The peer's server, as its own command starts it."""
        store = self._stores.InMemoryLightningStore(thread_safe=True)
        server = self._stores.LightningStoreServer(store, host="127.0.0.1", port=port, launch_mode="asyncio")
        await server.run_forever()

    async def _seed(self, size: int) -> float:
        if size not in self._seeded:
            store = self._seeded[size] = self.open()
            await work.seed_queries(store, self._kit, size)
        return float(size)


async def work_off(answers: TextIO) -> None:
    peer = Peer()
    for line in sys.stdin:
        job = json.loads(line)
        figure = await peer.do(job["work"], job["size"], job["url"])
        print(json.dumps({"figure": figure}), file=answers, flush=True)


def main() -> None:
    """Keep standard output for answers alone: whatever else prints goes to standard error."""
    if sys.argv[1:2] == ["--port"]:
        asyncio.run(Peer().serve(int(sys.argv[2])))
        return
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asyncio.run(work_off(answers))


if __name__ == "__main__":
    main()
