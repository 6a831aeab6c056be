"""The sections `http` and `webhooks` of a langgraph.json: what they say, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perdure.agents.sections import Cors, HttpSection, load_http
from perdure.kernel.errors import InvalidInput
from perdure.outbox.webhooks.urls import UrlPolicy, check_webhook_url


def loaded(folder: Path, **sections: Any) -> HttpSection:
    (folder / "langgraph.json").write_text(json.dumps({"graphs": {}, **sections}), encoding="utf-8")
    return load_http(folder)


def failures_of(section: HttpSection) -> list[str]:
    return [each.partition("langgraph.json: ")[2] for each in section.failures]


def test_without_a_file_or_a_section_nothing_is_set(tmp_path: Path) -> None:
    assert load_http(tmp_path) == HttpSection()
    assert loaded(tmp_path) == loaded(tmp_path, http={}, webhooks={}) == HttpSection()
    (tmp_path / "langgraph.json").write_text("{")
    assert load_http(tmp_path) == HttpSection()


def test_what_the_sections_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LG_WEBHOOK_KEY", "sesame")
    (tmp_path / "app.py").write_text("async def app(scope, receive, send): ...")
    section = loaded(
        tmp_path,
        http={
            "app": "./app.py:app",
            "cors": {"allow_origins": ["https://a.example"], "allow_credentials": True, "max_age": 5},
            "configurable_headers": {"includes": ["x-tenant-*", "cookie"], "excludes": ["x-tenant-key"]},
            "mount_prefix": "/my/agents/",
            "disable_store": True,
            "disable_mcp": False,
            "enable_custom_route_auth": False,
            "logging_headers": {"includes": ["*"]},
        },
        webhooks={
            "url": {"require_https": True, "allowed_domains": ["*.a.example"], "allowed_ports": [443]},
            "headers": {"X-Key": "Bearer ${{ env.LG_WEBHOOK_KEY }}!"},
        },
    )
    assert section.failures == ()
    assert section.cors == Cors(allow_origins=("https://a.example",), allow_credentials=True, max_age=5)
    assert section.mount_prefix == "/my/agents"
    assert section.disabled == {"store"}
    assert section.app is not None
    assert section.app_is_public
    assert section.webhook_headers == {"X-Key": "Bearer sesame!"}
    assert "sesame" not in repr(section)
    rules = section.configurable_headers
    assert rules is not None
    given = {"X-Tenant-Name": "acme", "x-tenant-key": "k", "cookie": "c", "authorization": "a", "accept": "*"}
    assert rules.chosen(given) == {"x-tenant-name": "acme", "cookie": "c"}


def test_credentials_get_into_a_run_by_their_own_name_alone(tmp_path: Path) -> None:
    rules = loaded(tmp_path, http={"configurable_headers": {"include": ["*"]}}).configurable_headers
    assert rules is not None
    given = {"authorization": "a", "x-api-key": "k", "cookie": "c", "x-service-key": "s", "x-more": "m"}
    assert rules.chosen(given) == {"x-more": "m"}


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"http": []}, "http must be an object; it is ignored"),
        ({"http": {"colour": 1}}, "http.colour is not known here; remove it, or see docs/langgraph.md"),
        ({"http": {"cors": {"allow_origin": []}}}, "unknown field 'allow_origin' in http.cors (did you mean"),
        ({"http": {"cors": {"allow_origins": "*"}}}, "in http.cors; it is ignored"),
        ({"http": {"cors": {"allow_origin_regex": "("}}}, "is no regular expression"),
        ({"http": {"configurable_headers": ["x"]}}, "in http.configurable_headers; it is ignored"),
        ({"http": {"mount_prefix": "api"}}, "http.mount_prefix must begin with a slash"),
        ({"http": {"mount_prefix": "/a/../b?"}}, "http.mount_prefix must begin with a slash"),
        ({"http": {"app": 5}}, "http.app must be a path"),
        ({"http": {"app": "./nowhere.py:app"}}, "it is not served"),
        ({"http": {"app": "./broken.py:app"}}, "ZeroDivisionError"),
        ({"http": {"app": "./broken.py:app"}}, "it is not served"),
        ({"webhooks": 5}, "webhooks must be an object"),
        ({"webhooks": {"url": {"disable_loopback": False}}}, "is always true here"),
        ({"webhooks": {"headers": {"X": "${{ env.HOME }}"}}}, "HOME must begin with LG_WEBHOOK_"),
        ({"webhooks": {"headers": {"X": "${{ env.LG_WEBHOOK_NONE }}"}}}, "is not set; it is not sent"),
        ({"webhooks": {"headers": {"X": "a\nb"}}}, "characters that are not allowed in a header"),
        ({"webhooks": {"headers": {"Host": "a"}}}, "this header cannot be set"),
        ({"webhooks": {"headers": {"Webhook-Signature": "a"}}}, "this header cannot be set"),
        ({"webhooks": {"headers": ["a"]}}, "webhooks.headers must be an object"),
    ],
)
def test_what_is_wrong_is_told_and_left_out(tmp_path: Path, sections: Any, words: str) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    section = loaded(tmp_path, **sections)
    assert any(words in each for each in failures_of(section)), section.failures
    assert (section.app, section.mount_prefix, section.webhook_headers) == (None, "", {})
    assert section.cors is None or section.cors == Cors()


def test_what_guards_something_is_closed_when_it_is_wrong(tmp_path: Path) -> None:
    section = loaded(tmp_path, http={"disable_store": "yes"}, webhooks={"url": {"require_https": "yes"}})
    assert section.disabled == {"store"}
    assert len(section.failures) == 2
    with pytest.raises(InvalidInput, match="webhooks are refused"):
        check_webhook_url("https://a.example/", policy=section.webhook_policy)
    for cors in (
        {"allow_origins": ["*"], "allow_credentials": True},
        {"allow_origin_regex": "https://.*", "allow_credentials": True},
    ):
        section = loaded(tmp_path, http={"cors": cors})
        assert section.cors is not None
        assert not section.cors.allow_credentials
        assert "name the origins" in failures_of(section)[0]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://hooks.a.example/", "only https"),
        ("https://b.example/", "not among the allowed hosts"),
        ("https://a.example/", "not among the allowed hosts"),
        ("https://hooks.a.example:444/", "port 444 is not allowed"),
        ("https://hooks.a.example/" + "x" * 200, "more than 100 characters"),
        ("/threads", "more than|must begin with http"),
    ],
)
def test_a_policy_of_the_project_holds_beside_the_settings(url: str, words: str) -> None:
    policy = UrlPolicy(
        require_https=True, allowed_domains=("*.a.example",), allowed_ports=(443, 9000), max_url_length=100
    )
    with pytest.raises(InvalidInput, match=words):
        check_webhook_url(url, policy=policy)
    assert check_webhook_url("https://hooks.a.example:9000/", policy=policy)
    with pytest.raises(InvalidInput, match="not among the allowed hosts"):
        check_webhook_url("https://hooks.a.example/", allowed_hosts=("c.example",), policy=policy)
