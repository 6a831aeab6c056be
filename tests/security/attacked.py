"""A project whose commands and agents attack the server that executes them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from tests.cli.command import Server

from . import attacker

KEY, WEBHOOKS = "key-of-the-server", "secret-of-webhooks"
PATIENCE = 90.0
ENDED = ("succeeded", "failed", "skipped")
WORKFLOW = """
name: attack
phases:
  - {{name: gate, type: approval}}
  - {{name: command, type: command, depends_on: [], {phase}
     command: "'{python}' attacker.py {{{{server}}}} {{{{project}}}} {{{{runtime}}}} {{{{home}}}}"}}
  - {{name: agent, depends_on: [], assistant: spy, {agent_phase}
     input: {{attack: ["{{{{server}}}}", "{{{{project}}}}", "{{{{runtime}}}}", "{{{{home}}}}"]}}}}
"""


class AttackedProject:
    """A project with secrets around it, in a folder that every user can enter."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.home, self.runtime = folder / "home", folder / "run"
        for each in (self.folder, self.home, self.runtime, self.folder / "deep", self.folder / "keys"):
            each.mkdir(mode=0o755)
        self.runtime.chmod(0o700)
        (self.home / "private.txt").write_text("private")
        for each in (self.folder / ".env", self.folder / "deep" / ".env"):
            each.write_text("OPENAI_API_KEY=private")
        (self.folder / "keys" / "api.key").write_text(KEY)
        shutil.copy(attacker.__file__, self.folder / "attacker.py")
        self.server: Server | None = None

    @property
    def is_changed(self) -> bool:
        """Whether an attacker has written into the project itself."""
        return (self.folder / "planted").exists()

    def configure(
        self,
        *,
        settings: str = "",
        agent: str = "",
        phase: str = "",
        agent_phase: str = "",
        python: str = sys.executable,
    ) -> Self:
        """Write `perdure.toml` and the workflow; the arguments are further lines of each."""
        (self.folder / "perdure.toml").write_text(
            f'[perdure]\nstate_dir = "{self.folder}/state"\nworkflow_dir = "workflows"\n{settings}\n'
            f'[perdure.agents.spy]\npath = "./attacker.py:isolated_attack"\nisolated = true\n{agent}\n'
        )
        (self.folder / "workflows").mkdir(exist_ok=True)
        text = WORKFLOW.format(python=python, phase=phase, agent_phase=agent_phase)
        text = text.replace("attacker.py", str(self.folder / "attacker.py"))
        (self.folder / "workflows" / "attack.yaml").write_text(text)
        return self

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        own = {"PERDURE_WEBHOOK_SECRET": WEBHOOKS, "XDG_RUNTIME_DIR": str(self.runtime)}
        homes = {name: str(self.home) for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME")}
        return {**own, **homes, **more}

    def serve(
        self, *arguments: str, more: Mapping[str, str], popen: Callable[..., Any] = subprocess.Popen
    ) -> Server:
        """Start a server in a process whose environment is its own."""
        self.server = Server(self.folder, "serve", *arguments, more=self.environment(more), popen=popen)
        return self.server

    def ask(self, path: str, body: Any = None, secret: str | None = KEY) -> Any:
        assert self.server is not None
        return attacker.ask(f"{self.server.url}/api/v1/{path}", secret, body)

    def attacked(self, secret: str | None = KEY) -> dict[str, dict[str, Any]]:
        """Run the workflow; gives what its command and its agent got, or the error of each."""
        assert self.server is not None
        places = {"project": str(self.folder), "runtime": str(self.runtime), "home": str(self.home)}
        begun = self.ask(
            "workflows/attack/runs", {"context": {"server": self.server.url, **places}}, secret=secret
        )
        run_id = begun["workflow_run_id"]
        deadline = time.monotonic() + PATIENCE
        while True:
            run = self.ask(f"workflow-runs/{run_id}", secret=secret)
            nodes = {node["node"]: node for node in run["nodes"]}
            attackers = [nodes[name] for name in ("command", "agent")]
            if all(node["status"] in ENDED for node in attackers):
                break
            assert time.monotonic() < deadline, run
        return {node["node"]: self._result(node, secret) for node in attackers} | {
            "gate": {"status": nodes["gate"]["status"]}
        }

    def _result(self, node: dict[str, Any], secret: str | None) -> dict[str, Any]:
        if node["status"] != "succeeded":
            return {"status": node["status"], "error": node["error"]}
        execution = self.ask(f"executions/{node['execution_id']}", secret=secret)
        return dict(json.loads(execution["output_text"]))


def environments_of(pid: int) -> bytes:
    """What /proc shows of the environment of a process."""
    return Path(f"/proc/{pid}/environ").read_bytes()


def is_root() -> bool:
    return os.geteuid() == 0
