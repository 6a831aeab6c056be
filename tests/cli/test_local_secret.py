"""The operator is never locked out: the first token, and the secret of the command on the machine."""

import json
import os
import stat
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from perdure.runtime.private_files import LocalSecret, read_local_secret

from .command import Server, run_here

DATABASE = "sqlite:///perdure.db"
URL = "http://127.0.0.1:4747"
AUTH = """
from langgraph_sdk import Auth

auth = Auth()

@auth.authenticate
async def nobody(authorization):
    raise Auth.exceptions.HTTPException(status_code=401, detail="nobody comes in here")
"""


@pytest.fixture
def runtime(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "run").mkdir(mode=0o700)
    return {"XDG_RUNTIME_DIR": str(tmp_path / "run")}


def secrets_in(runtime: dict[str, str]) -> list[Path]:
    return sorted(Path(runtime["XDG_RUNTIME_DIR"]).glob("perdure/*"))


# --- the first token ----------------------------------------------------------------------------------------


def test_the_first_token_is_an_administrators_unless_it_is_confirmed(tmp_path: Path) -> None:
    def create(*arguments: str) -> Any:
        return run_here(tmp_path, "token", "create", *arguments, "--database", DATABASE)

    refused = create("reader", "--scope", "read")
    assert refused.returncode == 1
    assert "the first token needs the scope admin" in refused.stderr
    assert "--yes" in refused.stderr
    listed = run_here(tmp_path, "token", "list", "--json", "--database", DATABASE)
    assert json.loads(listed.stdout)["items"] == []
    first = create("reader", "--scope", "read", "--yes")
    assert first.returncode == 0
    assert "from now on, every caller needs one" in first.stderr
    second = create("another", "--scope", "read")
    assert second.returncode == 0
    assert "from now on" not in second.stderr


def test_an_administrators_token_needs_no_confirmation(tmp_path: Path) -> None:
    made = run_here(tmp_path, "token", "create", "me", "--scope", "admin", "--json", "--database", DATABASE)
    assert json.loads(made.stdout)["first"] is True


def test_with_an_api_key_the_first_token_may_be_a_workers(tmp_path: Path, runtime: dict[str, str]) -> None:
    key = {"PERDURE_API_KEY": "the-operators-key-16"}
    with Server(tmp_path, "serve", more=runtime | key) as server:
        by_key = runtime | key | {"PERDURE_TOKEN": key["PERDURE_API_KEY"]}
        made = server.json("token", "create", "w1", "--scope", "worker", more=by_key)
        assert (made["scopes"], made["first"]) == (["worker"], False)
        # The key still works, and administers the token.
        assert server.run("token", "revoke", made["token_id"], more=by_key).returncode == 0
        server.stop()
    create = ("token", "create", "w2", "--scope", "worker", "--database", "sqlite:///other.db")
    assert run_here(tmp_path, *create).returncode == 1
    direct = run_here(tmp_path, *create, more=key)
    assert direct.returncode == 0
    assert "from now on" not in direct.stderr


# --- the command on the server's machine --------------------------------------------------------------------


def test_the_command_comes_in_without_a_token(tmp_path: Path, runtime: dict[str, str]) -> None:
    with Server(tmp_path, "serve", "--log-level", "debug", more=runtime) as server:
        made = server.json("token", "create", "reader", "--scope", "read", "--yes", more=runtime)
        assert server.get("/api/v1/rollouts")[0] == 401
        assert [each["name"] for each in server.json("token", "list", more=runtime)["items"]] == ["reader"]
        other = {"PERDURE_TOKEN": made["secret"], **runtime}
        assert server.run("token", "list", more=other).returncode == 1
        in_url = {"PERDURE_URL": server.url.replace("//", f"//default:{made['secret']}@"), **runtime}
        assert server.run("token", "list", more=in_url).returncode == 1
        assert server.run("token", "list", more={"XDG_RUNTIME_DIR": ""}).returncode == 1
        named = {"PERDURE_URL": server.url.replace("127.0.0.1", "localhost"), **runtime}
        assert server.run("token", "list", more=named).returncode == 1
        (file,) = secrets_in(runtime)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        _, secret = file.read_text().split()
        asking = urllib.request.Request(
            f"{server.url}/api/v1/audit?action=create_token", headers={"Authorization": f"Bearer {secret}"}
        )
        with urllib.request.urlopen(asking) as answer:
            assert [each["actor"] for each in json.load(answer)["items"]] == ["local"]
        server.stop()
    assert secrets_in(runtime) == []
    assert secret not in server.errors + server.output
    assert secret.encode() not in b"".join(each.read_bytes() for each in tmp_path.glob("perdure.db*"))


@pytest.mark.parametrize(
    ("setting", "with_key", "is_written"),
    [
        ("auto", True, False),
        ("auto", False, True),
        ("on", True, True),
        ("on", False, True),
        ("off", True, False),
        ("off", False, False),
    ],
)
def test_with_an_api_key_no_secret_is_written_unless_it_is_asked_for(
    setting: str, with_key: bool, is_written: bool, tmp_path: Path, runtime: dict[str, str]
) -> None:
    key = "a-key-of-the-server"
    more = {**runtime, "PERDURE_LOCAL_SECRET": setting, **({"PERDURE_API_KEY": key} if with_key else {})}
    with Server(tmp_path, "serve", more=more) as server:
        made = server.run("token", "create", "me", "--scope", "admin", more={**runtime, "PERDURE_TOKEN": key})
        assert (made.returncode == 0) is with_key
        if not with_key:
            server.json("token", "create", "me", "--scope", "admin", more=runtime)
        assert bool(secrets_in(runtime)) is is_written
        listed = server.run("token", "list", more=runtime)
        assert (listed.returncode == 0) is is_written
        if not is_written:
            assert "local_secret" in listed.stderr
            assert "API key" in listed.stderr
    assert secrets_in(runtime) == []


def test_the_command_comes_in_under_custom_auth(tmp_path: Path, runtime: dict[str, str]) -> None:
    (tmp_path / "auth.py").write_text(AUTH)
    (tmp_path / "langgraph.json").write_text('{"graphs": {}, "auth": {"path": "./auth.py:auth"}}')
    with Server(tmp_path, "dev", "--grpc-port", "0", more=runtime) as server:
        assert server.get("/api/v1/rollouts")[0] == 401
        assert server.json("rollout", "list", more=runtime)["items"] == []


# --- the file -----------------------------------------------------------------------------------------------


@pytest.fixture
def place(runtime: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime["XDG_RUNTIME_DIR"])
    return Path(runtime["XDG_RUNTIME_DIR"]) / "perdure" / "127.0.0.1-4747.secret"


def test_each_start_has_a_secret_of_its_own(place: Path) -> None:
    first, second = LocalSecret(URL), LocalSecret(URL)
    assert read_local_secret(URL) is None
    first.publish()
    assert read_local_secret(URL) == first.value
    second.publish()
    assert read_local_secret(URL) == second.value != first.value
    first.remove()
    assert read_local_secret(URL) == second.value
    second.remove()
    assert not list(place.parent.iterdir())


@pytest.mark.parametrize(
    "url",
    ["http://localhost:4747", "http://192.0.2.1:4747", "https://127.0.0.1:4747", "http://127.0.0.1:99999"],
)
def test_it_is_for_loopback_addresses_alone(place: Path, url: str) -> None:
    LocalSecret(URL).publish()
    assert read_local_secret(url) is None
    LocalSecret(url).publish()
    assert [each.name for each in place.parent.iterdir()] == [place.name]


def test_addresses_are_told_apart(place: Path) -> None:
    six = LocalSecret("http://[::1]:4747")
    six.publish()
    assert read_local_secret("http://[::1]:4747") == six.value
    assert read_local_secret(URL) is None


def test_what_others_could_have_written_is_not_read(place: Path) -> None:
    secret = LocalSecret(URL)
    secret.publish()
    place.chmod(0o644)
    assert read_local_secret(URL) is None
    place.chmod(0o600)
    place.parent.chmod(0o755)
    assert read_local_secret(URL) is None
    place.parent.chmod(0o700)
    assert read_local_secret(URL) == secret.value
    kept = place.rename(place.with_name("kept"))
    place.symlink_to(kept)
    assert read_local_secret(URL) is None
    place.unlink()
    place.write_text("not a number")
    place.chmod(0o600)
    assert read_local_secret(URL) is None


def test_a_directory_that_others_could_write_to_is_not_written_to(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place.parent.mkdir()
    place.parent.chmod(0o775)
    LocalSecret(URL).publish()
    assert list(place.parent.iterdir()) == []
    assert "not a private directory" in caplog.text


def test_a_directory_that_others_could_only_read_is_closed_to_them(place: Path) -> None:
    """For example the directory that a worker creates for workspaces, before a server logs there."""
    place.parent.mkdir()
    place.parent.chmod(0o755)
    secret = LocalSecret(URL)
    secret.publish()
    assert read_local_secret(URL) == secret.value
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700


def test_what_a_killed_server_left_is_not_sent_and_goes_with_the_next_start(place: Path) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    place.parent.mkdir(mode=0o700)
    place.touch(mode=0o600)
    place.write_text(f"{child} left\n")
    assert read_local_secret(URL) is None
    LocalSecret("http://127.0.0.1:4748").publish()
    assert [each.name for each in place.parent.iterdir()] == ["127.0.0.1-4748.secret"]
