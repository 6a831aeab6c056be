"""The script ./dev: what it refuses, what it skips, and how it recovers; no test here reaches the network."""

import ast
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "dev"


@pytest.fixture
def dev() -> ModuleType:
    loader = SourceFileLoader("dev_script", str(SCRIPT))
    spec = importlib.util.spec_from_loader("dev_script", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


class Recorder:
    """Stands in for running commands: the environment is made, the installation only noted."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.code = 0

    def __call__(self, command: list[str], *arguments: Any, **options: Any) -> int:
        self.commands.append(command)
        if "venv" in command:
            return subprocess.run([*command, "--without-pip"], check=False).returncode
        return self.code

    @property
    def made(self) -> int:
        return sum("venv" in command for command in self.commands)

    @property
    def installed(self) -> list[str]:
        return [command[-1] for command in self.commands if "install" in command]


@pytest.fixture
def calls(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(dev, "call", recorder)
    return recorder


def test_files_of_tests_are_in_memory_where_there_is_plenty(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(dev, "IN_MEMORY_BYTES", 1)
    assert dev.in_memory() == ({"TMPDIR": "/dev/shm"} if Path("/dev/shm").is_dir() else {})
    monkeypatch.setattr(dev, "IN_MEMORY_BYTES", 1 << 60)
    assert dev.in_memory() == {}
    monkeypatch.setattr(dev, "IN_MEMORY_BYTES", 1)
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    assert dev.in_memory() == {}


@pytest.fixture
def environment(dev: ModuleType, tmp_path: Path) -> Any:
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    environment = dev.Environment(tmp_path)
    environment.uv = "uv"
    return environment


@pytest.mark.parametrize("arguments", [[], ["unknown"], ["check", "surplus"], ["setup", "surplus"]])
def test_what_it_does_not_know_gets_help_and_code_2(arguments: list[str]) -> None:
    answer = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert answer.stdout == ""
    for command in ("setup", "run", "test", "check", "docs", "bench", "chaos", "conformance"):
        assert f"./dev {command}" in answer.stderr


def test_help_is_no_error() -> None:
    answer = subprocess.run([sys.executable, SCRIPT, "--help"], capture_output=True, text=True, check=True)
    assert "./dev test" in answer.stdout


def test_continuous_integration_runs_the_tests_and_then_the_real_client() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in lines if "./dev" in line and not line.startswith("#")] == [
        "python3 ./dev test",
        "exec python3 ./dev conformance",
    ]


def test_an_older_python_can_read_it_far_enough_to_refuse() -> None:
    tree = ast.parse(SCRIPT.read_text(), feature_version=(3, 7))
    refusal = next(index for index, node in enumerate(tree.body) if isinstance(node, ast.If))
    assert [ast.unparse(node) for node in tree.body[1:refusal]] == ["import sys"]
    assert "sys.exit" in ast.unparse(tree.body[refusal])


def test_a_finished_environment_is_left_alone(environment: Any, calls: Recorder) -> None:
    environment.ensure("dev")
    assert (calls.made, calls.installed) == (1, [".[dev]"])
    environment.ensure("dev")
    environment.ensure("")
    assert (calls.made, calls.installed) == (1, [".[dev]"])


def test_the_base_is_added_to_when_tests_are_wanted(environment: Any, calls: Recorder) -> None:
    environment.ensure("")
    environment.ensure("dev")
    assert (calls.made, calls.installed) == (1, [".", ".[dev]"])


def test_building_the_guide_installs_its_own_extra_unless_the_tests_have_it(
    dev: ModuleType, environment: Any, calls: Recorder
) -> None:
    assert dev.docs(environment, ["--serve"]) == 0
    assert calls.commands[-1][1:] == ["docs/build_site.py", "--serve"]
    environment.ensure("")
    assert calls.installed == [".[docs]"]
    environment.ensure("dev")
    dev.docs(environment, [])
    assert calls.installed == [".[docs]", ".[dev]"]


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_changed_inputs_are_installed_again(environment: Any, calls: Recorder, name: str) -> None:
    environment.ensure("dev")
    with (environment.root / name).open("a") as file:
        file.write("\n# changed\n")
    environment.ensure("dev")
    assert (calls.made, len(calls.installed)) == (1, 2)


def test_an_interrupted_installation_starts_anew(dev: ModuleType, environment: Any, calls: Recorder) -> None:
    calls.code = 1
    with pytest.raises(dev.Failed):
        environment.ensure("dev")
    calls.code = 0
    environment.ensure("dev")
    assert calls.made == 2
    assert json.loads(environment.stamp.read_text())["state"] == "done"


@pytest.mark.parametrize("damage", ["an empty folder", "a file in its place", "a broken stamp"])
def test_a_half_made_environment_is_recovered(environment: Any, calls: Recorder, damage: str) -> None:
    environment.ensure("dev")
    if damage == "a broken stamp":
        environment.stamp.write_text("[]")
    else:
        shutil.rmtree(environment.home)
        environment.home.mkdir() if damage == "an empty folder" else environment.home.write_text("")
    environment.ensure("dev")
    assert (calls.made, len(calls.installed)) == (2, 2)
    assert environment.is_done("dev")


def test_a_moved_environment_is_made_anew(dev: ModuleType, environment: Any, calls: Recorder) -> None:
    environment.ensure("dev")
    moved = dev.Environment(environment.root.rename(environment.root.with_name("moved")))
    moved.uv = "uv"
    moved.ensure("dev")
    assert (calls.made, len(calls.installed)) == (2, 2)


def test_an_environment_made_by_hand_is_used_not_removed(environment: Any, calls: Recorder) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment.home], check=True)
    (environment.home / "mine").write_text("")
    environment.ensure("dev")
    assert (calls.made, len(calls.installed)) == (0, 1)
    assert (environment.home / "mine").exists()


def test_a_python_without_pip_names_the_package_to_install(
    dev: ModuleType, environment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.uv = None
    monkeypatch.setattr(dev.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(dev.Failed, match=r"apt install python3\.\d+-venv"):
        environment.ensure("dev")


def test_only_one_process_at_a_time_holds_the_lock(dev: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with dev.locked(path), path.open("a") as second:
        assert not dev.try_lock(second.fileno())
    with path.open("a") as third:
        assert dev.try_lock(third.fileno())


def test_an_installer_that_outlives_the_script_holds_the_lock(dev: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with dev.locked(path) as lock:
        installer = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(lock,))
    with installer, path.open("a") as second:
        assert not dev.try_lock(second.fileno())
        assert installer.stdin is not None
        installer.stdin.close()
        installer.wait()
        assert dev.try_lock(second.fileno())


@pytest.mark.parametrize(("arguments", "wanted"), [([], True), (["--fast"], False)])
def test_the_tests_have_a_browser_before_they_start(
    dev: ModuleType, environment: Any, calls: Recorder, arguments: list[str], wanted: bool
) -> None:
    assert dev.test(environment, arguments) == 0
    steps = [command[1:3] for command in calls.commands]
    assert (["-m", "tests.support.browser"] in steps) is wanted
    assert ["-m", "tests.support.browser"] not in steps[steps.index(["-m", "pytest"]) :]
    assert ["-m", "mypy"] in steps


@pytest.mark.parametrize("failing", ["ruff", "mypy", "pytest"])
def test_the_test_command_fails_with_any_of_its_steps(
    dev: ModuleType, environment: Any, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    seen: list[list[str]] = []

    def call(command: list[str], *arguments: Any, **options: Any) -> int:
        seen.append(command)
        return 3 if failing in command else 0

    monkeypatch.setattr(dev, "call", call)
    monkeypatch.setattr(environment, "ensure", lambda extra: None)
    assert dev.test(environment, []) == 3
    # Types are checked beside the tests, which tell more where both fail.
    assert any("pytest" in command for command in seen) is (failing != "ruff")
    assert any("mypy" in command for command in seen) is (failing != "ruff")


def test_what_runs_beside_the_tests_is_printed_where_it_fails(
    dev: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    fail = [sys.executable, "-c", "print('why'); raise SystemExit(3)"]
    succeed = [sys.executable, "-c", "print('fine')"]
    assert dev.Beside([("first", succeed), ("second", fail), ("third", succeed)]).finish() == 3
    output = capfd.readouterr().out
    assert ("fine" in output, "why" in output) == (False, True)
    assert re.findall(r"(\w+): (\w+) in \d+\.\d s", output)[-3:] == [
        ("first", "ok"),
        ("second", "FAILED"),
        ("third", "ok"),
    ]


def test_steps_end_at_the_first_that_fails(dev: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    fail = [sys.executable, "-c", "raise SystemExit(3)"]
    succeed = [sys.executable, "-c", "print('ran')"]
    assert dev.run_steps([("first", succeed), ("second", fail), ("third", succeed)]) == 3
    output = capfd.readouterr().out
    assert output.count("ran") == 1
    assert re.search(r"first: ok in \d+\.\d s", output)
    assert re.search(r"second: FAILED in \d+\.\d s", output)


def test_everything_that_is_installed_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    wanted += [each for extra in extras.values() for each in extra if not each.startswith("perdure[")]
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in pins if not re.match(r"[a-z0-9-]+==[\w.]+( ; .+)?$", line)] == []
    pinned = {line.partition("==")[0] for line in pins}
    assert {re.split(r"[<>=\[ ;]", each)[0] for each in wanted} - pinned == set()


def test_commands_may_keep_their_bytecode(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert "PYTHONDONTWRITEBYTECODE" not in dev.variables()


def test_the_test_command_names_its_slowest_files_and_passes_the_rest_on(
    dev: ModuleType, environment: Any, calls: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dev.os, "cpu_count", lambda: 2)
    dev.test(environment, ["--fast", "tests/kernel"])
    (given,) = [command[3:] for command in calls.commands if command[1:3] == ["-m", "pytest"]]
    assert given == ["-n", "4", "--dearest-files=15", "--rerun-alone", "--fast", "tests/kernel"]
