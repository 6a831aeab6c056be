"""The tutorial runs as written, with a model behind the test's own OpenAI-compatible URL."""

import json
import shlex
from pathlib import Path

from tests.support.chat_model import serving_model
from tests.test_docs import WITH_MODEL as PAGE
from tests.test_docs import blocks_of

from .command import Server
from .test_page import FIRST_RUN, is_served, lines_of


def test_the_tutorial_runs_as_it_is_written(tmp_path: Path) -> None:
    (agent,) = [block.text for block in blocks_of(PAGE) if block.text.startswith("# agent.py\n")]
    (tmp_path / "agent.py").write_text(agent)
    outputs: dict[str, str] = {}
    with serving_model() as model:
        surroundings = {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "sk-of-the-test"}
        with Server(tmp_path, "serve", "--agents", "./agent.py:agents", more=surroundings) as server:
            for line in lines_of(PAGE):
                words = shlex.split(line)[1:]
                if is_served(words):
                    continue
                if FIRST_RUN in words:
                    oldest = server.json("run", "ls", "--thread", "trip")["items"][-1]
                    words[words.index(FIRST_RUN)] = oldest["run_id"]
                ended = server.run(*words)
                while "No spans yet" in ended.stdout:
                    # Spans are written a moment after the run has ended.
                    ended = server.run(*words)
                assert ended.returncode == 0, (line, ended.stderr)
                outputs[line] = ended.stdout
    for city in ("Rome", "Oslo"):
        (answer,) = [text for line, text in outputs.items() if city in line]
        assert f"It is sunny in {city}, 24 degrees." in answer
    (tree,) = [text for line, text in outputs.items() if line.startswith("perdure span list")]
    for name in ("chat gpt-5-mini", "execute_tool weather", "40 in, 9 out"):
        assert name in tree
    # The second run knows the answer of the first one.
    assert any("Rome" in json.dumps(body) and "Oslo" in json.dumps(body) for body in model.requests)
