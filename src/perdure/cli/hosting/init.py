"""`perdure init`: writes a small project that runs."""

from __future__ import annotations

import os
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from perdure.cli.shell.options import JsonOption, NoColorOption, flag

IGNORED = """\
# perdure's database, and its files beside it
perdure.db*
sessions/
agent-sessions/
__pycache__/
.env
"""
NATIVE = {
    "agents.py": '''\
"""The agents of this project. `perdure dev` loads this file again whenever you save it."""

from perdure import Agents

agents = Agents()


@agents.agent
async def greet(ctx, input):
    """Says hello, and remembers whom it has met on the thread."""
    before = await ctx.load() or {"met": []}
    met = [*before["met"], input["name"]]
    await ctx.emit({"looking up": input["name"]})
    return {"greeting": f"Hello, {input['name']}!", "met": met}
''',
    "perdure.toml": """\
[perdure]
database_url = "sqlite:///perdure.db"

[perdure.agents]
greet = "./agents.py:greet"
""",
    ".gitignore": IGNORED,
}
GRAPH = {
    "agent.py": '''\
"""The graph of this project. `perdure dev` loads this file again whenever you save it."""

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph


async def answer(state: MessagesState):
    """Answer the last message. Call a model here: `await model.ainvoke(state["messages"])`."""
    said = state["messages"][-1].content
    return {"messages": [AIMessage(content=f"You said: {said}")]}


graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile()
''',
    "ask.py": '''\
"""Asks the agent and prints its answer: python ask.py Hello"""

import asyncio
import os
import sys

from langgraph_sdk import get_client


async def main() -> None:
    client = get_client(url=os.environ.get("PERDURE_URL", "http://127.0.0.1:4747"))
    question = {"role": "user", "content": " ".join(sys.argv[1:]) or "Hello"}
    thread = await client.threads.create()
    state = await client.runs.wait(thread["thread_id"], "agent", input={"messages": [question]})
    print(state["messages"][-1]["content"])


asyncio.run(main())
''',
    "langgraph.json": """\
{
  "dependencies": ["."],
  "graphs": { "agent": "./agent.py:graph" },
  "env": ".env"
}
""",
    ".env": "# Variables for your graph, such as the key of a model. What is set in the shell wins.\n",
    ".gitignore": IGNORED,
}


def init(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="Folder of the project; created if needed (default: this one).",
            show_default=False,
        ),
    ] = Path(),
    langgraph: Annotated[
        bool, flag("--langgraph", help="A LangGraph graph with a langgraph.json, instead of a function.")
    ] = False,
    as_json: JsonOption = False,
    no_color: NoColorOption = False,
) -> None:
    """Write a small project that runs: an agent, and the file that names it.

    No file is overwritten.
    """
    from perdure.cli.shell.output import Output

    files = GRAPH if langgraph else NATIVE
    write_files(folder, files)
    commands = _next_commands(folder, langgraph=langgraph)
    output = Output(as_json=as_json, no_color=no_color)
    if as_json:
        output.document({"folder": str(folder.resolve()), "files": sorted(files), "commands": commands})
        return
    output.print(f"Wrote {', '.join(files)} in {folder.resolve()}.\n\nNext:")
    for command in commands:
        output.print(f"  {command}")


def write_files(folder: Path, files: dict[str, str]) -> None:
    """Write files into a folder; Conflict, and nothing is written, if one of them is there already."""
    from perdure.kernel.errors import Conflict, InvalidInput

    there = [name for name in files if os.path.lexists(folder / name)]
    if there:
        raise Conflict(
            f"{', '.join(there)} in {folder.resolve()} would be overwritten, so nothing was written; "
            "choose another folder"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            # A file that has come meanwhile is not overwritten either.
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(content)
    except OSError as error:
        raise InvalidInput(f"cannot write to {folder.resolve()}: {error.strerror}") from error


def _next_commands(folder: Path, *, langgraph: bool) -> list[str]:
    commands = [] if folder.resolve() == Path.cwd() else [f"cd {shlex.quote(str(folder))}"]
    if langgraph and find_spec("langgraph") is None:
        commands.append("pip install 'perdure[langgraph]'")
    commands.append("perdure dev")
    if langgraph:
        return [*commands, "python ask.py Hello            # in another terminal"]
    return [*commands, """perdure run create greet '{"name": "Ada"}' --wait   # in another terminal"""]
