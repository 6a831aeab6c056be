"""`perdure token`, before the first start and afterwards."""

import json
import re
from pathlib import Path

from .command import Server, run_here

DATABASE = "sqlite:///perdure.db"


def test_the_first_token_is_made_without_a_server_and_closes_the_door(tmp_path: Path) -> None:
    made = run_here(tmp_path, "token", "create", "first", "--scope", "admin", "--database", DATABASE)
    assert made.returncode == 0
    secret = made.stdout.strip()
    assert re.fullmatch(r"pdr_[0-9a-f]{16}_[A-Za-z0-9_-]{43}", secret)
    assert "cannot be shown again" in made.stderr

    with Server(tmp_path, "serve", "--log-level", "debug") as server:
        assert server.facts["key_needed"] is True
        assert server.run("rollout", "list").returncode == 1
        admin = {"PERDURE_TOKEN": secret}
        assert server.json("rollout", "list", more=admin)["items"] == []

        reader = server.json("token", "create", "reader", "--scope", "read", "--expires", "1h", more=admin)
        reading = {"PERDURE_TOKEN": reader["secret"]}
        assert server.json("rollout", "list", more=reading)["items"] == []
        refused = server.run("rollout", "enqueue", "1", more=reading)
        assert refused.returncode == 1
        assert "forbidden" in refused.stderr

        tokens = server.json("token", "list", more=admin)["items"]
        assert [token["name"] for token in tokens] == ["first", "reader"]
        assert "secret" not in json.dumps(tokens)
        listed = server.run("token", "list", more=admin).stdout
        assert re.search(r"reader +read +default .* active, expires in", listed)

        assert server.run("token", "revoke", reader["token_id"], more=admin).returncode == 0
        assert server.run("rollout", "list", more=reading).returncode == 1
        server.stop()
    assert secret not in server.errors
    listed = run_here(tmp_path, "token", "list", "--database", DATABASE).stdout
    assert re.search(r"reader .* revoked .* ago", listed)


def test_a_token_reaches_its_namespaces_alone(tmp_path: Path) -> None:
    made = run_here(
        tmp_path, "token", "create", "mine", "--namespace", "mine", "--yes", "--json", "--database", DATABASE
    )
    token = json.loads(made.stdout)
    assert token["namespaces"] == ["mine"]
    with Server(tmp_path) as server:
        more = {"PERDURE_TOKEN": token["secret"]}
        assert server.json("rollout", "enqueue", "1", more=more)["status"] == "queuing"
        refused = server.run("rollout", "list", "--namespace", "other", more=more)
        assert (refused.returncode, "forbidden" in refused.stderr) == (1, True)


def test_an_empty_list_teaches_and_bad_tokens_are_refused(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        assert "perdure token create" in server.run("token", "list").stdout
        assert server.json("token", "list") == {"items": []}
        for arguments in (("x", "--scope", "everything"), ("",), ("x", "--expires", "0s")):
            refused = server.run("token", "create", *arguments)
            wrong = "--scope must be" if "everything" in arguments else "perdure: invalid_input: "
            assert (refused.returncode, wrong in refused.stderr) == (2 if "--scope" in wrong else 1, True)
        assert server.json("token", "list")["items"] == []


def test_a_token_that_no_header_can_carry_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with Server(tmp_path, more={"PERDURE_API_KEY": "a-key-of-some-length-cl\u00e9"}) as server:
        for command in (("run", "ls"), ("rollout", "ls"), ("token", "ls")):
            refused = server.run(*command, more={"PERDURE_TOKEN": "a-key-of-some-length-cl\u00e9"})
            assert refused.returncode == 1
            assert "the token must be printable ASCII" in refused.stderr
            assert "Traceback" not in refused.stderr
