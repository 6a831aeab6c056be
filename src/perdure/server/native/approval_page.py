"""The page of an approval link. Showing it changes nothing; submitting its form answers once.

The link itself authorizes its assignee, so no key is needed. All text from agents is shown as plain text.
"""

from __future__ import annotations

import base64
from hashlib import sha256
from html import escape
from typing import Final
from urllib.parse import parse_qs

from starlette.responses import Response

from perdure.approvals.link_model import ApprovalLinkRow, LinkToken, parse_link_token
from perdure.approvals.model import ANSWERS, MAX_RESPONSE, REPLY, Answer, ApprovalRow
from perdure.approvals.operations import LinkWithApproval
from perdure.kernel.checks import check_choice
from perdure.kernel.clock import to_iso
from perdure.kernel.errors import Conflict, Forbidden, InvalidInput, NotFound, PerdureError, UnsupportedMedia
from perdure.server.http.gate import OWN_SITES, is_own
from perdure.server.http.routes import Call

FORM: Final = "application/x-www-form-urlencoded"
MAX_FORM: Final = 4 * MAX_RESPONSE
"""A form may encode each byte of a text with three characters."""
STYLE = """
:root { color-scheme: light dark; --edge: #8885; --soft: #8881; --quiet: #667;
  --yes: #1a7f42; --no: #b3261e; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0; background: #f6f7f9; color: #1b1d22; }
main { max-width: 42rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.35rem; line-height: 1.3; margin: 0 0 .25rem; overflow-wrap: anywhere; }
.quiet { color: var(--quiet); font-size: .9rem; margin: 0 0 1rem; overflow-wrap: anywhere; }
section { background: #fff; border: 1px solid var(--edge); border-radius: .6rem; padding: 1rem;
  margin: 1rem 0; }
h2 { font-size: .8rem; text-transform: uppercase; letter-spacing: .04em; color: var(--quiet);
  margin: 0 0 .5rem; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; font: inherit; }
pre.text { font: 14px/1.5 ui-monospace, monospace; max-height: 24rem; overflow: auto; background: var(--soft);
  border-radius: .4rem; padding: .75rem; }
label { display: block; font-weight: 600; margin-bottom: .4rem; }
textarea { width: 100%; min-height: 6rem; font: inherit; padding: .6rem; border: 1px solid var(--edge);
  border-radius: .4rem; background: transparent; color: inherit; resize: vertical; }
.row { display: flex; flex-wrap: wrap; gap: .6rem; margin-top: .9rem; }
button { flex: 1 1 9rem; font: inherit; font-weight: 600; padding: .7rem 1rem; border-radius: .4rem;
  border: 1px solid transparent; color: #fff; background: var(--yes); cursor: pointer; min-height: 2.9rem; }
button.no { background: transparent; color: var(--no); border-color: var(--no); }
button:focus-visible, textarea:focus-visible { outline: 3px solid #3b82f6; outline-offset: 2px; }
.state { display: inline-block; border: 1px solid currentColor; border-radius: 1rem; padding: .05rem .7rem;
  font-size: .85rem; font-weight: 600; }
.state.approved { color: var(--yes); } .state.rejected, .state.expired { color: var(--no); }
@media (prefers-color-scheme: dark) {
  :root { --quiet: #9aa0ad; --yes: #2f9e5a; --no: #ff8a80; }
  body { background: #14161a; color: #e6e8ec; } section { background: #1c1f25; }
}
"""
_HASH = base64.b64encode(sha256(STYLE.encode()).digest()).decode()
HEADERS: Final = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; form-action 'self';"
    " frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "X-Robots-Tag": "noindex, nofollow",
}
TEXTS: Final = {
    "approved": "It was approved.",
    "rejected": "It was rejected.",
    "expired": "It expired without an answer.",
    "withdrawn": "It is no longer needed: its workflow run was cancelled.",
}


async def show(call: Call) -> Response:
    """Show the approval. A program that fetches the link for a preview changes nothing."""
    linked = await _find_link(call)
    return _not_found() if linked is None else _page(_render(linked))


async def answer(call: Call) -> Response:
    """Answer the approval, and show the result."""
    _check_page(call)
    token = _token(call)
    if token is None:
        return _not_found()
    try:
        choice, text = _form(call)
        linked = await call.app.services.linked_approvals.answer(token, choice, text)
    except NotFound:
        return _not_found()
    except (Conflict, InvalidInput) as error:
        now = await _find_link(call)
        return _not_found() if now is None else _page(_render(now, problem=error), error.http_status)
    return _page(_render(linked, done=True))


def _token(call: Call) -> LinkToken | None:
    return parse_link_token(call.path["token"])


async def _find_link(call: Call) -> LinkWithApproval | None:
    token = _token(call)
    return None if token is None else await call.app.services.linked_approvals.find(token)


def _check_page(call: Call) -> None:
    """Refuse a form from another site. Our own page sends no referrer, so its origin may be null."""
    header = call.request.headers.get
    origin, site = header("origin"), header("sec-fetch-site")
    foreign = origin not in (None, "null") and not is_own(origin or "", header("host"))
    if foreign or (site is not None and site not in OWN_SITES):
        raise Forbidden("a page of another site sent this form")


def _form(call: Call) -> tuple[Answer, str | None]:
    """Parse the answer and the text of a form."""
    kind = call.request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != FORM:
        raise UnsupportedMedia(f"the form needs the Content-Type {FORM}")
    try:
        fields = parse_qs(call.body.decode(), max_num_fields=10)
    except (ValueError, UnicodeDecodeError):
        raise InvalidInput("the form cannot be read") from None
    choice = check_choice(fields.get("answer", [""])[0], ANSWERS, "answer")
    # Browsers end the lines of a form with CRLF.
    text = fields.get("text", [""])[0].replace("\r\n", "\n")
    return choice, text if text.strip() else None


# --- HTML -------------------------------------------------------------------------------------------------


def _page(content: str, status: int = 200) -> Response:
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="robots" content="noindex"><title>Approval</title><style>{STYLE}</style></head>'
        f"<body><main>{content}</main></body></html>"
    )
    return Response(text, status, headers=HEADERS, media_type="text/html")


def _not_found() -> Response:
    return _page(
        "<h1>This link does not work</h1>"
        "<p>It is incomplete, or it was replaced by a newer one. Ask for another.</p>",
        404,
    )


def _render(linked: LinkWithApproval, *, done: bool = False, problem: PerdureError | None = None) -> str:
    row, link = linked.approval, linked.link
    return "".join(
        (
            f"<h1>{escape(row.workflow_name)}: {escape(row.label)}</h1>",
            f'<p class="quiet">{escape(row.trigger_id)} · gate {escape(row.gate)} · asked '
            f"{_time(row.created_at)}</p>",
            _problem(problem) if row.open else "",
            _block("Question", row.summary),
            _block("To look at", row.artifact, tag="pre") if row.artifact else "",
            _render_form(row, link) if linked.is_valid else _state(row, link, done=done),
        )
    )


def _block(title: str, text: str, tag: str = "div") -> str:
    return f'<section><h2>{title}</h2><{tag} class="text">{escape(text)}</{tag}></section>'


def _problem(problem: PerdureError | None) -> str:
    if problem is None:
        return ""
    return f'<section role="alert"><p class="text">{escape(problem.public)}</p></section>'


def _render_form(row: ApprovalRow, link: ApprovalLinkRow) -> str:
    asks = row.kind == REPLY
    label = "Your reply" if asks else "Comment or reason (optional)"
    yes = ("reply", "Send reply") if asks else ("approve", "Approve")
    ends = f" The approval expires {_time(row.expires_at)}." if row.expires_at is not None else ""
    return (
        '<section><form method="post" action="">'
        f'<label for="text">{label}</label>'
        f'<textarea id="text" name="text" maxlength="{MAX_RESPONSE}"></textarea>'
        f'<div class="row"><button name="answer" value="{yes[0]}">{yes[1]}</button>'
        '<button class="no" name="answer" value="reject">Reject</button></div></form></section>'
        f'<p class="quiet">You answer as {escape(link.assignee)}. This link works once, until '
        f"{_time(link.expires_at)}.{ends}</p>"
    )


def _state(row: ApprovalRow, link: ApprovalLinkRow, *, done: bool) -> str:
    if row.open:
        reason = "was used already" if link.used_at is not None else "is no longer valid"
        return f'<section><p class="text">This link {reason}. The approval still waits.</p></section>'
    by = f" by {escape(row.responded_by)}" if row.responded_by else ""
    at = f" at {_time(row.responded_at)}" if row.responded_at is not None else ""
    thanks = "<p>Your answer is recorded. You can close this page.</p>" if done else ""
    response = _block("Answer", row.response) if row.response else ""
    return (
        f'<section role="status"><p><span class="state {escape(row.status)}">{escape(row.status)}</span></p>'
        f'<p class="text">{TEXTS[row.status].rstrip(".")}{by}{at}.</p>{thanks}</section>{response}'
    )


def _time(micros: int) -> str:
    """Format a time for people, in UTC."""
    moment = to_iso(micros)
    return f'<time datetime="{moment}">{moment[:10]} {moment[11:16]} UTC</time>'
