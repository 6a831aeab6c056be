"""A program that speaks JSON lines, in the way that its first argument names. Run by test_commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any


def say(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def hear() -> Any:
    return json.loads(sys.stdin.readline())


def never() -> None:
    threading.Event().wait()


def talks(start: Any) -> None:
    say(type="event", event="custom", data={"input": start["input"]})
    say(type="log", level="warning", message="careful")
    say(type="save", values={"n": 1}, next=["more"], id=7)
    saved = hear()
    say(type="step", name="pay", result="paid")
    kept = hear()
    say(type="result", values={"saved": saved, "kept": kept})


def speaks(start: Any) -> None:
    say(type="session", session_id="s-1", cwd="/srv", id=1)
    opened = hear()
    say(type="message", role="user", content="hello")
    say(type="tool_result", tool_use_id="t", content="out", is_error=True)
    say(type="usage", cost_usd=0.5, output_tokens=3)
    say(type="result", values=opened)


def prints_file(start: Any) -> None:
    """Prints a file as it is, and ends."""
    with open(start["input"], encoding="utf-8") as file:
        sys.stdout.write(file.read())


def echoes(start: Any) -> None:
    say(type="result", values=start)


def asks(start: Any) -> None:
    say(type="interrupt", value="really?")
    say(type="result", values={"answer": hear()})


def shows_environment(start: Any) -> None:
    say(type="result", values={"environment": dict(os.environ), "cwd": os.getcwd()})


def ends_well(start: Any) -> None:
    say(type="save", values={"n": 1})
    hear()


def fails(start: Any) -> None:
    sys.stderr.write("first\nit broke\n")
    sys.exit(3)


def errors(start: Any) -> None:
    say(type="error", error="RateLimited", message="later", retriable=True)


def kills_itself(start: Any) -> None:
    say(type="event", data="before")
    os.kill(os.getpid(), signal.SIGKILL)


def prints(start: Any) -> None:
    sys.stdout.write("hello, I print\n\n[1, 2]\n")
    say(type="result", values={"fine": True})


def garbage(start: Any) -> None:
    sys.stdout.write('{"type": "event", \n')


def unknown_type(start: Any) -> None:
    say(type="dance")


def bad_field(start: Any) -> None:
    say(type="save")


def binary(start: Any) -> None:
    sys.stdout.buffer.write(b"\xff\xfe\x00garbage\n" + b'{"type": "log", "message": "\xff"}\n')
    sys.stdout.buffer.flush()


def long_line(start: Any) -> None:
    say(type="event", data="x" * 200_000)
    say(type="result", values=None)


def floods(start: Any) -> None:
    for number in range(20_000):
        say(type="event", data=number)
    say(type="result", values={"sent": 20_000})


def floods_stderr(start: Any) -> None:
    sys.stderr.write("x" * 2_000_000 + "\n")
    sys.stderr.flush()
    say(type="result", values={"fine": True})


def never_reads(start: Any) -> None:
    while True:
        say(type="step", name="same", result="y" * 10_000)


def obeys(start: Any) -> None:
    say(type="event", event="ready", data=None)
    order = hear()
    sys.stderr.write(f"told to stop: {order['action']}\n")


def ignores(start: Any) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
    say(type="event", event="ready", data=[os.getpid(), child.pid])
    never()


def leaves_child(start: Any) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
    say(type="result", values={"child": child.pid})


def lingers(start: Any) -> None:
    say(type="result", values={"pid": os.getpid()})
    never()


def closes_stdin(start: Any) -> None:
    os.close(0)
    say(type="save", values=1)
    say(type="result", values={"fine": True})


if __name__ == "__main__":
    globals()[sys.argv[1]](None if sys.argv[1] == "deaf" else hear())
