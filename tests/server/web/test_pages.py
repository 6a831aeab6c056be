"""The pages of the dashboard: their paths and headers, and the answer without a build."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.server.local_server import serving_locally
from tests.server.support import Visitor, serving

from perdure import InMemoryLightningStore
from perdure.agents.sections import HttpSection
from perdure.kernel.config import Settings
from perdure.runtime.app import App
from perdure.server.table import build_application
from perdure.server.web import dashboard

SCRIPT = "console.log('hello');" * 100
PAGE = '<meta name="style-nonce" content="perdure-nonce"><base href="/perdure-base/"><script src="./a.js">'


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the real build by a small one."""
    folder = tmp_path / "web"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text(PAGE)
    (folder / "theme.js").write_text("1")
    (folder / "assets" / "app-1a2b.js").write_text(SCRIPT)
    (folder / dashboard.STAMP).write_text("secret")
    (tmp_path / "outside.txt").write_text("outside")
    monkeypatch.setattr(dashboard, "FOLDER", folder)
    return folder


@pytest_asyncio.fixture
async def visitor() -> AsyncIterator[Visitor]:
    async with InMemoryLightningStore() as store, serving(store) as visitor:
        yield visitor


async def test_the_root_leads_to_the_dashboard(build: Path, visitor: Visitor) -> None:
    for path in ("/", "/ui"):
        answer = await visitor.get(path, allow_redirects=False)
        assert (answer.status, answer.headers["Location"]) == (307, "/ui/")


async def test_every_path_below_is_the_page_with_a_nonce_of_its_own(build: Path, visitor: Visitor) -> None:
    nonces = set()
    for path in ("/ui/", "/ui/rollouts", "/ui/rollouts/a%2Fb/c", "/ui/theme.js/x"):
        answer = await visitor.get(path)
        assert answer.status == 200
        assert b'<base href="/ui/">' in answer.body
        policy = answer.headers["Content-Security-Policy"]
        (nonce,) = re.findall(r"'nonce-([\w-]+)'", policy)
        assert nonce.encode() in answer.body
        nonces.add(nonce)
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["Cache-Control"] == "no-store"
    assert len(nonces) == 4


async def test_files_are_kept_by_browsers_and_sent_packed(build: Path, visitor: Visitor) -> None:
    packed = await visitor.get("/ui/assets/app-1a2b.js", headers={"Accept-Encoding": "gzip"})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert int(packed.headers["Content-Length"]) == len(gzip.compress(SCRIPT.encode(), 9, mtime=0))
    assert "immutable" in packed.headers["Cache-Control"]
    assert packed.headers["Content-Type"] == "text/javascript; charset=utf-8"
    plain = await visitor.get("/ui/assets/app-1a2b.js", headers={"Accept-Encoding": "identity"})
    assert plain.body.decode() == SCRIPT
    assert (await visitor.get("/ui/theme.js")).headers["Cache-Control"] == "no-cache"


async def test_nothing_outside_the_build_is_sent(build: Path, visitor: Visitor) -> None:
    for path in (
        "../outside.txt",
        "..%2foutside.txt",
        "%2e%2e/outside.txt",
        ".stamp",
        "assets/../../outside.txt",
    ):
        answer = await visitor.get(f"/ui/{path}")
        assert b"outside" not in answer.body
        assert b"secret" not in answer.body
    assert (await visitor.get("/ui/assets/older.js")).status == 404


async def test_a_new_build_is_served_without_a_restart(build: Path, visitor: Visitor) -> None:
    assert b"a.js" in (await visitor.get("/ui/")).body
    (build / "index.html").write_text("another build")
    os.utime(build / "index.html", ns=(1, 1))
    assert (await visitor.get("/ui/")).body == b"another build"


async def test_without_a_build_the_page_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visitor: Visitor
) -> None:
    monkeypatch.setattr(dashboard, "FOLDER", tmp_path)
    answer = await visitor.get("/ui/rollouts")
    assert answer.status == 503
    assert b"./dev setup" in answer.body
    assert (await visitor.get("/api/v1/rollouts")).status == 200


async def test_it_stands_below_the_prefix_of_a_project_and_can_be_disabled(
    build: Path, visitor: Visitor
) -> None:
    async with InMemoryLightningStore() as store:
        app = App(store, Settings(), http=HttpSection(mount_prefix="/agents"))
        async with serving_locally(build_application(app)) as url:
            for path in ("/agents/", "/"):
                answer = await Visitor(url, visitor.session, app).get(path, allow_redirects=False)
                assert answer.headers["Location"] == "/agents/ui/"
            below = await Visitor(url, visitor.session, app).get("/agents/ui/rollouts")
            assert b'<base href="/agents/ui/">' in below.body
        app = App(store, Settings(), http=HttpSection(disabled=frozenset({"ui"})))
        async with serving_locally(build_application(app)) as url:
            assert (await Visitor(url, visitor.session, app).get("/ui/")).status == 404
