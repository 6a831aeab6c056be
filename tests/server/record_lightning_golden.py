"""Records the answers of `agentlightning` itself, for the golden test.

Run it from the repository with the Python of the peer's environment, which `./dev conformance` creates:
`.bench/agentlightning-0.3.0/bin/python -m tests.server.record_lightning_golden`
"""

import asyncio
import importlib
import json
import os
import socket
from pathlib import Path
from typing import Any

from tests.server.lightning_cases import play

GOLDEN = Path(__file__).with_name("lightning_golden.json")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def record() -> dict[str, Any]:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    store: Any = importlib.import_module("agentlightning.store")
    server = store.LightningStoreServer(store.InMemoryLightningStore(), host="127.0.0.1", port=free_port())
    await server.start()
    try:
        return await asyncio.to_thread(play, server.endpoint)
    finally:
        await server.stop()


def main() -> None:
    answers = asyncio.run(record())
    GOLDEN.write_text(json.dumps(answers, indent=1, ensure_ascii=False, sort_keys=True) + "\n", "utf-8")
    print(f"{len(answers)} answers recorded in {GOLDEN.name}")


if __name__ == "__main__":
    main()
