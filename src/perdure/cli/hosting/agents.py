"""The agents of a command line and of this directory's files; `perdure agents` lists them."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.shell.options import JsonOption, NoColorOption, text
from perdure.cli.shell.output import Output, warn

if TYPE_CHECKING:
    from perdure.agents.loading import LoadedAgents
    from perdure.kernel.config import Settings
    from perdure.worker.registry import Agents

AgentsOption = Annotated[
    list[str] | None,
    text(
        "MODULE:NAME",
        "Agents to run: an Agents object or a single agent, as module:name or ./file.py:name; repeatable.",
        "--agents",
    ),
]

EMPTY = """No agents found. Write them, for example in agents.py:

  from perdure import Agents

  agents = Agents()

  @agents.agent("greet")
  async def greet(ctx, input):
      return {"greeting": f"Hello, {input['name']}!"}

Then name them with --agents ./agents.py:agents, or one by one in perdure.toml:

  [perdure.agents]
  greet = "./agents.py:greet"
"""


def agents(given: AgentsOption = None, as_json: JsonOption = False, no_color: NoColorOption = False) -> None:
    """List the agents configured here: in perdure.toml, langgraph.json and --agents."""
    from perdure.kernel.config import load_settings

    loaded = load_quietly(load_settings())
    include(loaded.agents, given or ())
    output = Output(as_json=as_json, no_color=no_color)
    if as_json:
        failures = [failure._asdict() for failure in loaded.failures]
        output.document({"agents": loaded.agents.specs, "failures": failures})
    elif len(loaded.agents):
        rows = [(spec.name, spec.kind, spec.description) for spec in loaded.agents.specs]
        output.table(("agent", "kind", "description"), rows)
    elif not loaded.failures:
        output.print(EMPTY.rstrip())
    if loaded.failures:
        for failure in loaded.failures if not as_json else ():
            warn(str(failure))
        raise typer.Exit(1)


def load_quietly(settings: Settings) -> LoadedAgents[Agents]:
    """Load the agents of the settings without logging; the result contains the failures."""
    from perdure.agents.loading import load_agents
    from perdure.worker.registry import Agents

    log = logging.getLogger("perdure.agents.loading")
    was_disabled, log.disabled = log.disabled, True
    try:
        return load_agents(Agents(), settings)
    finally:
        log.disabled = was_disabled


def gather_agents(settings: Settings, given: Sequence[str]) -> Agents:
    """Load the agents of the command line, the settings and `langgraph.json`; failures are logged."""
    return gather(settings, given).agents


def gather(
    settings: Settings, given: Sequence[str], place: str | os.PathLike[str] = "."
) -> LoadedAgents[Agents]:
    """Load all agents, with those that failed; `place` is the directory of the project."""
    from perdure.agents.loading import load_agents
    from perdure.agents.sections import unsupported
    from perdure.worker.registry import Agents

    loaded = load_agents(Agents(), settings, place)
    for section in unsupported(place):
        warn(section)
    include(loaded.agents, given)
    return loaded


def gather_handlers(settings: Settings) -> Agents:
    """Load the cron handlers and conditions that the settings name; failures are logged."""
    from perdure.agents.loading import load_handlers
    from perdure.worker.registry import Agents

    return load_handlers(Agents(), settings).agents


def include(agents: Agents, given: Sequence[str]) -> None:
    """Add the agents of the command line."""
    from perdure.agents.loading import import_named
    from perdure.agents.project import explain_failure
    from perdure.kernel.errors import InvalidInput
    from perdure.worker.registry import Agents

    for path in given:
        try:
            target = import_named(path)
        except (Exception, SystemExit) as error:
            raise InvalidInput(f"--agents {path}: {explain_failure(error)}") from error
        if isinstance(target, Agents):
            agents.include(target)
        else:
            agents.register(path.rpartition(":")[2], target)
