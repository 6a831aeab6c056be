"""Program that prints the events of pi, as many as its argument names. Run by test_phases."""

import json
import sys
from typing import Any

AT = "2026-03-01T10:00:01.000Z"


def say(kind: str, **more: Any) -> None:
    sys.stdout.write(json.dumps({"type": kind, **more, "sessionId": "pi-7", "timestamp": AT}) + "\n")
    sys.stdout.flush()


def message(*content: Any, **more: Any) -> None:
    say("message_end", message={"role": "assistant", "model": "m-1", "content": [*content], **more})


def talk() -> None:
    say("session", version=3, id="pi-7", cwd="/srv/shop")
    say("agent_start")
    thought, text = {"type": "thinking", "thinking": "A tool knows."}, {"type": "text", "text": "I look."}
    call = {"type": "toolCall", "id": "c1", "name": "bash", "arguments": {"command": "cat map"}}
    message(thought, text, call, usage={"input": 20, "output": 4}, stopReason="toolUse")
    say("message_update", message={"role": "assistant", "content": []})
    say("tool_execution_end", toolCallId="c1", result={"content": "x" * 70_000}, isError=False)
    if sys.argv[1] == "dies":
        sys.exit(3)
    message({"type": "text", "text": "In Italy."}, stopReason="stop")
    tokens = {"input": 100, "output": 50, "cacheRead": 7, "cacheWrite": 3}
    say("usage_snapshot", stats={"assistantMessages": 2, "tokens": tokens, "cost": 0.5})


sys.stdin.readline()
talk()
