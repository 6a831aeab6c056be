"""Serve the agent, talk to it with `langgraph_sdk`, kill the server in the middle of a run, and go on.

pip install "perdure[langgraph]"
python examples/react_agent/walkthrough.py
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
from langgraph_sdk import get_client

HERE = Path(__file__).parent
PATIENCE = 120


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """`perdure serve` in the folder of the langgraph.json, with a database in a folder of its own."""

    def __init__(self, folder: str) -> None:
        self.port = free_port()
        self.bookings = Path(folder, "bookings.txt")
        self._database = f"sqlite:///{folder}/concierge.db"
        self._process = self._started()

    def _started(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "perdure.cli", "serve", "--log-level", "error"]
        options = ["--port", str(self.port), "--database", self._database]
        surroundings = {**os.environ, "BOOKINGS": str(self.bookings)}
        return subprocess.Popen([*command, *options], cwd=HERE, env=surroundings)  # noqa: S603

    def kill_and_start(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._process = self._started()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    async def answering(self, client: Any) -> None:
        """Wait until it is up."""
        while self._process.poll() is None:
            try:
                await client.http.get("/ok")
                return
            except httpx.ConnectError:
                await asyncio.sleep(0.1)
        raise RuntimeError("the server did not start")


async def told(stream: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Print what a stream says, and give the parts on."""
    async for part in stream:
        if part.event == "custom":
            print(f"  the agent looks at {part.data['looking_at']}")
        elif part.event == "updates" and "think" in part.data:
            print(f"  the agent says: {part.data['think']['messages'][-1]['content'].strip()}")
        yield part


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(folder)
        try:
            await asyncio.wait_for(talk(server), PATIENCE)
        finally:
            server.close()


async def talk(server: Server) -> None:
    async with get_client(url=f"http://127.0.0.1:{server.port}") as client:
        await server.answering(client)
        thread_id = (await client.threads.create())["thread_id"]
        print("A run is asked for:")
        run = await client.runs.create(
            thread_id,
            "concierge",
            input={"messages": [{"role": "user", "content": "A table for four, please."}]},
            stream_mode=["updates", "custom"],
            stream_resumable=True,
        )
        last = await until_wednesday(client, thread_id, run["run_id"])
        print("The server is killed, and started again:")
        server.kill_and_start()
        await server.answering(client)
        async for _ in told(client.runs.join_stream(thread_id, run["run_id"], last_event_id=last)):
            pass
        await approve(client, thread_id)
        print(f"The bookings: {server.bookings.read_text().strip()}")


async def until_wednesday(client: Any, thread_id: str, run_id: str) -> str:
    """Follow the run until it is in the middle of its work; gives the id of the last event."""
    async for part in told(client.runs.join_stream(thread_id, run_id, last_event_id="-1")):
        if part.event == "custom" and part.data["looking_at"] == "Wednesday":
            return str(part.id)
    raise RuntimeError("the run ended too soon")


async def approve(client: Any, thread_id: str) -> None:
    thread = await client.threads.get(thread_id)
    (asked,) = [each for given in thread["interrupts"].values() for each in given]
    print(f"The thread is {thread['status']}: {asked['value']['question']}")
    values = await client.runs.wait(thread_id, "concierge", command={"resume": "yes"})
    print(f"  the agent says: {values['messages'][-1]['content'].strip()}")


if __name__ == "__main__":
    asyncio.run(main())
