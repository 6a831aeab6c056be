"""The example of a workflow, as in its README: run, wait for a person, be killed, approve, end."""

import json
import shlex
import shutil
import signal
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

from tests.test_docs import blocks_of

from .command import ROOT, Server, start

EXAMPLE = ROOT / "examples" / "coding_workflow"
QUICK = {"BG_JOB_HEARTBEAT": "1", "BG_JOB_INTERVAL": "1"}


def commands_of(readme: Path) -> list[list[str]]:
    """Return the words of each command of the page, without the server's."""
    lines = [line for block in blocks_of(readme) for line in block.text.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line != "perdure dev"]


def test_the_commands_of_its_page_bring_it_to_its_end_over_a_killed_server(tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLE, tmp_path / "example")
    names = {"APPROVAL_ID": "", "RUN_ID": ""}
    printed: list[str] = []
    server = Server(folder, "dev", more=QUICK).__enter__()
    try:
        for words in commands_of(EXAMPLE / "README.md"):
            ended = server.run(*(names.get(word, word) for word in words))
            assert (ended.returncode, ended.stderr) == (0, ""), words
            printed.append(ended.stdout)
            if words[:2] == ["workflow", "run"]:
                (waiting,) = server.json("approval", "list")["items"]
                names = {"APPROVAL_ID": waiting["approval_id"][:18], "RUN_ID": waiting["workflow_run_id"]}
                server.stop(signal.SIGKILL)
                port = str(urlsplit(server.url).port)
                server = Server(folder, "dev", "--port", port, more=QUICK).__enter__()
                watching = start(
                    folder, "workflow", "watch", names["RUN_ID"], "--json", more={"PERDURE_URL": server.url}
                )
                assert watching.stdout is not None
                seen = [json.loads(watching.stdout.readline())]
                while seen[-1]["node"] != "run":
                    seen.append(json.loads(watching.stdout.readline()))
        run = server.json("workflow", "show", names["RUN_ID"])
        seen += [json.loads(line) for line in watching.communicate()[0].splitlines()]
        today = server.json("workflow", "stats", "--by", "day", "--last", "1", "--workflow", "coding")
        phases = server.json("workflow", "stats", "--by", "phase")["items"]
    finally:
        server.stop()
    assert run["status"] == "succeeded"
    assert run["final_message"] == "Slugs for titles: released after 2 iterations and 1 fix"
    assert "Release it?" in waiting["summary"]
    # The watch continued over the approval, and ended with the run.
    assert watching.returncode == 0
    statuses = [each["status"] for each in seen if each["node"] == "run"]
    assert (statuses[0], statuses[-1]) == ("paused", "succeeded")
    (day,) = today["items"]
    assert day["total"] == sum(each["total"] for each in phases) == sum(run["executions"].values())
    assert (day["succeeded"], day["failed"]) == (run["executions"]["succeeded"], run["executions"]["failed"])
    assert all(each["status"] == "succeeded" for each in run["nodes"])
    assert "review_recheck_1" in "".join(printed)
    with zipfile.ZipFile(folder / "workspaces" / names["RUN_ID"] / "release.zip") as package:
        assert package.namelist() == ["slug.py", "test_slug.py"]
        assert b'"""' in package.read("slug.py")
