"""Program that writes JSON lines to its session. Run by test_sessions."""

import json
import sys
from typing import Any


def say(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def talker(start: Any) -> None:
    call = {"type": "tool_use", "id": "t-1", "name": "search", "input": {"q": "Rome"}}
    usage = {"input_tokens": 5, "output_tokens": 7}
    say(type="message", role="user", content=start["input"]["text"])
    said = [{"type": "text", "text": "I look."}, call]
    say(type="message", role="assistant", content=said, model="m-1", usage=usage)
    say(type="tool_result", tool_use_id="t-1", content="x" * 70_000)
    say(type="tool_result", tool_use_id="t-2", content={"no": "such tool"}, is_error=True)
    say(type="message", role="assistant", content="In Italy.", model="m-1")
    say(type="usage", cost_usd=0.25, **usage, turns=2, stop_reason="end_turn")
    say(type="result", values={"session_id": start["session_id"]})


globals()[sys.argv[1]](json.loads(sys.stdin.readline()))
