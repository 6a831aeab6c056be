"""Credentials with which an approval was answered, and credentials that its gate refuses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.access.support import access_of, open_engine
from tests.server.support import Answer, Visitor, serving
from tests.server.web.test_login import OWN, cookie_of, login
from tests.workflows.support import workflow

from perdure.kernel.config import SecretKey
from perdure.kernel.errors import Forbidden
from perdure.rollouts.store import DatabaseLightningStore
from perdure.service.callers import CREDENTIALS
from perdure.workflows.loading import load_text

KEY = SecretKey("only-the-operator-knows")
LOCAL = "the-secret-of-the-command-on-this-machine"
ASKING = """
name: asking
phases:
  - {{name: agree, type: approval, approval_gate_message: "Go on?", answer_by: [{answer_by}]}}
"""


@pytest_asyncio.fixture
async def store(engine_url: str) -> AsyncIterator[DatabaseLightningStore]:
    async with open_engine(engine_url) as opened:
        yield opened


@pytest_asyncio.fixture
async def visitor(store: DatabaseLightningStore) -> AsyncIterator[Visitor]:
    async with serving(store, api_key=KEY) as visitor:
        visitor.app.local_secret = LOCAL
        yield visitor


async def ask(visitor: Visitor, answer_by: str = "") -> str:
    """Start a run that waits at a gate; return the id of its approval."""
    services = visitor.app.services
    services.definitions.add(workflow(ASKING.format(answer_by=answer_by)))
    run = await services.workflows.run("asking")
    (approval,) = (await services.approvals.list(workflow_run_id=run.workflow_run_id)).items
    return approval.approval_id


class People:
    """All kinds of callers: the request headers by credential."""

    def __init__(self, visitor: Visitor, token: str, headers: dict[str, dict[str, str]]) -> None:
        self.visitor, self.token_id, self.headers = visitor, token.split("_")[1], headers

    async def answer(self, credential: str, approval_id: str) -> Answer:
        if credential != "link":
            path = f"/api/v1/approvals/{approval_id}/approve"
            return await self.visitor.post(path, json={}, headers=self.headers[credential])
        path = f"/api/v1/approvals/{approval_id}/links"
        created = await self.visitor.post(path, json={"assignee": "ann"}, headers=self.headers["key"])
        if created.status != 201:
            return created
        form = {"answer": "approve", "text": ""}
        return await self.visitor.post(created.body["path"], data=form, headers={"Origin": self.visitor.url})


async def gather(visitor: Visitor) -> People:
    _, token = await access_of(visitor.app).create_token("ann", scopes=["write", "read"], actor="test")

    async def log_in(secret: str) -> dict[str, str]:
        return cookie_of(await login(visitor, secret)) | OWN

    headers = {
        "key": {"x-api-key": str(KEY)},
        "token": {"x-api-key": token},
        "local": {"x-api-key": LOCAL},
        "login": await log_in(token),
        "login with the key": await log_in(str(KEY)),
        "login with the local secret": await log_in(LOCAL),
    }
    return People(visitor, token, headers)


EXPECTED = {
    "key": ("key", "key", False),
    "token": ("ann", "token", True),
    "local": ("local", "local", False),
    "link": ("ann", "link", None),
    "login": ("ann", "login", True),
    "login with the key": ("key", "login", False),
    "login with the local secret": ("local", "local", False),
}


async def test_an_approval_records_who_answered_and_by_which_credential(visitor: Visitor) -> None:
    people = await gather(visitor)
    for credential, (name, kind, has_token) in EXPECTED.items():
        approval_id = await ask(visitor)
        assert (await people.answer(credential, approval_id)).status == 200, credential
        approval = await visitor.app.services.approvals.get(approval_id)
        assert (approval.status, approval.responded_by, approval.responded_with) == ("approved", name, kind)
        if has_token is None:
            links = await visitor.app.services.approvals.links(approval_id)
            assert approval.responded_with_id == links[0].link_id
        else:
            assert approval.responded_with_id == (people.token_id if has_token else None), credential


@pytest.mark.parametrize(
    "answer_by", ["token, link, login", "link", "key", "local, login", ", ".join(CREDENTIALS)]
)
async def test_a_gate_refuses_the_credentials_that_it_does_not_name(visitor: Visitor, answer_by: str) -> None:
    people = await gather(visitor)
    for credential, (_, kind, _) in EXPECTED.items():
        approval_id = await ask(visitor, answer_by)
        answer = await people.answer(credential, approval_id)
        approval = await visitor.app.services.approvals.get(approval_id)
        assert approval.answer_by == answer_by.split(", ")
        if kind in approval.answer_by:
            assert (answer.status, approval.status) == (200, "approved"), credential
        else:
            assert (answer.status, answer.body["code"]) == (403, "forbidden"), credential
            assert f"approval {approval_id} is answered by" in answer.body["detail"]
            assert (approval.status, approval.responded_with) == ("pending", None)
            # A refused answer leaves the approval pending, so that an allowed credential can answer it.
            assert (await people.answer(approval.answer_by[0], approval_id)).status == 200


async def test_code_of_this_process_and_callers_without_a_secret_have_no_credential(
    store: DatabaseLightningStore,
) -> None:
    async with serving(store) as visitor:
        approvals = visitor.app.services.approvals
        gated, free = await ask(visitor, "token, link, login"), await ask(visitor)
        for way in ("approve", "reject"):
            with pytest.raises(Forbidden, match="not by a caller without a credential"):
                await getattr(approvals, way)(gated)
            assert (await visitor.post(f"/api/v1/approvals/{gated}/{way}", json={})).status == 403
        assert (await visitor.post(f"/api/v1/approvals/{free}/approve", json={})).body[
            "responded_with"
        ] is None
        assert (await approvals.get(gated)).status == "pending"


@pytest.mark.parametrize("answer_by", ["[person]", "token", "[token, {a: 1}]", "[" + "link," * 6 + "]"])
def test_what_is_no_list_of_credentials_is_refused_with_its_file(answer_by: Any) -> None:
    loaded = load_text(ASKING.replace("[{answer_by}]", answer_by).replace("{{", "{").replace("}}", "}"))
    assert loaded.definition is None
    assert "answer_by" in str(loaded.problems)
