"""What `deploy/` has is true: its commands, settings, probes, ports and times are the server's."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.command import commands

from perdure.kernel.config import SECRETS, Settings
from perdure.server.http.connections import PROBES
from perdure.server.table import ROUTES

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
SETTINGS = frozenset(Settings.__struct_fields__) - {"sources"}
PORT = Settings().port
GRPC_PORT = 4317
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


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(read("compose.yaml"))["services"]["perdure"]
    return found


def manifests() -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in yaml.safe_load_all(read("kubernetes/perdure.yaml"))}


def container() -> dict[str, Any]:
    (found,) = manifests()["Deployment"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def docker(instruction: str) -> list[str]:
    """What the lines of an instruction say."""
    lines = read("Dockerfile").replace("\\\n", " ").splitlines()
    return [line.partition(" ")[2] for line in lines if line.startswith(f"{instruction} ")]


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


def test_variables_are_settings() -> None:
    unit = [each.partition("=")[0] for each in service()["Environment"]]
    image = re.findall(r"(\w+)=", docker("ENV")[0])
    pod = [each["name"] for each in container()["env"]]
    for names in (unit, image, compose()["environment"], pod):
        found = set(variables_in(names))
        assert found
        assert found <= SETTINGS


def test_an_address_that_is_open_has_a_key() -> None:
    assert "PERDURE_HOST=0.0.0.0" in docker("ENV")[0]
    pod = [each["name"] for each in container()["env"]]
    for names in (compose()["environment"], pod):
        assert {"PERDURE_API_KEY", "PERDURE_API_KEY_FILE"} & set(names)


# --- probes, ports and times ------------------------------------------------------------------------------


def test_probes_are_routes_that_need_no_key() -> None:
    pod = container()
    used = {name: pod[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: probe["path"] for name, probe in used.items()} == {
        "startup": "/healthz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    }
    commands = [docker("HEALTHCHECK")[0], " ".join(compose()["healthcheck"]["test"])]
    for command in commands:
        assert re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", command) == [(str(PORT), "/readyz")]
    paths = {"/healthz", "/readyz"}
    assert paths <= PUBLIC
    assert paths <= PROBES


def test_ports_are_those_of_the_server() -> None:
    assert docker("EXPOSE") == [f"{PORT} {GRPC_PORT}"]
    assert compose()["ports"] == [f"127.0.0.1:{port}:{port}" for port in (PORT, GRPC_PORT)]
    pod = {each["name"]: each["containerPort"] for each in container()["ports"]}
    assert pod == {"http": PORT, "grpc": GRPC_PORT}
    ports = manifests()["Service"]["spec"]["ports"]
    assert {each["targetPort"]: each["port"] for each in ports} == pod
    assert all(container()[f"{name}Probe"]["httpGet"]["port"] == "http" for name in ("liveness", "readiness"))


def test_there_is_time_to_stop() -> None:
    spec = manifests()["Deployment"]["spec"]["template"]["spec"]
    before = int(container()["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert spec["terminationGracePeriodSeconds"] > before + LONGEST_STOP
    assert seconds(compose()["stop_grace_period"]) > LONGEST_STOP
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
