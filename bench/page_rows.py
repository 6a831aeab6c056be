"""The dashboard in a real browser: size and time of its first screen, and scrolling of a long trace."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median
from typing import Any

from bench.host import Host
from bench.http_servers import SERVE, START_SECONDS, running
from bench.measures import Figures, Measure, Row
from bench.sizes import Sizes, label
from perdure import Perdure, Span
from perdure.rollouts.records import AttemptStatus
from perdure.testing.serving import ServerProcess

MOST_KILOBYTES = 300.0
MOST_MS = 1000.0
LEAST_FRAMES = 58.0
"""Slightly below the 60 frames/s of a screen, because a rare late frame is not visible."""
LONGEST_TASK_MS = 100.0
VIEWPORT = {"width": 1280, "height": 800}
TRACE = "cd" * 16
A_BATCH = 500
SCROLLED_SECONDS = 4.0
QUIET_MS = 500
"""A page is idle if no long task has started for this time."""
TIMEOUT_MS = 120_000
IN_PAGE = """
const bench = window.bench = { tasks: [], shown: 0 };
new PerformanceObserver(list => {
  for (const { startTime, duration } of list.getEntries())
    bench.tasks.push({ start: startTime, end: startTime + duration });
}).observe({ type: "longtask", buffered: true });
bench.rest = (quiet) => new Promise(done => {
  const look = () => {
    const last = bench.tasks.at(-1)?.end ?? 0;
    const since = performance.now() - Math.max(last, bench.shown);
    since >= quiet ? done(Math.max(last, bench.shown)) : setTimeout(look, quiet - since + 1);
  };
  look();
});
bench.longest = () => Math.max(0, ...bench.tasks.map(each => each.end - each.start));
bench.scroll = (frame, seconds) => new Promise(done => {
  const all = frame.scrollHeight - frame.clientHeight, began = performance.now();
  let frames = 0;
  const step = () => {
    const part = (performance.now() - began) / (seconds * 1000);
    if (part >= 1) return done(frames / ((performance.now() - began) / 1000));
    frames += 1;
    frame.scrollTop = part * all;
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
});
"""
"""Script for a page: records tasks over 50 ms, the time of idleness, and the frames of a scroll."""
HOME_SHOWN = """() => {
  const ready = document.querySelector("main h1") && document.querySelector("main .card") &&
    !document.querySelector("main [aria-busy=true]");
  if (ready && !window.bench.shown) window.bench.shown = performance.now();
  return Boolean(ready);
}"""
SENT = """() => performance.getEntriesByType("navigation").concat(performance.getEntriesByType("resource"))
  .filter(each => new URL(each.name).pathname.startsWith("/ui/"))
  .reduce((total, each) => total + each.encodedBodySize, 0)"""


def measures(sizes: Sizes) -> list[Measure]:
    """Build the rows: a server on SQLite and the browser of the tests, on one machine."""
    count = label(sizes.page_spans)
    return [
        Measure(
            (
                Row(
                    "page/first_screen",
                    "files of the first screen as sent",
                    "KB",
                    "lower",
                    target=MOST_KILOBYTES,
                ),
                Row(
                    "page/interactive",
                    "Home shown and at rest, nothing cached",
                    "ms",
                    "lower",
                    target=MOST_MS,
                ),
                Row(
                    "page/open_trace",
                    f"a trace of {count} spans opened and read to its end",
                    "ms",
                    "lower",
                ),
                Row(
                    "page/open_longest_task",
                    f"longest task while {count} spans are read; 0: none over 50",
                    "ms",
                    "lower",
                    target=LONGEST_TASK_MS,
                ),
                Row(
                    "page/scroll",
                    f"frames while {count} spans scroll by in {SCROLLED_SECONDS:.0f} s",
                    "frames/s",
                    target=LEAST_FRAMES,
                ),
                Row(
                    "page/scroll_longest_task",
                    f"longest task while {count} spans scroll by; 0: none over 50",
                    "ms",
                    "lower",
                    target=LONGEST_TASK_MS,
                ),
            ),
            _figures,
        )
    ]


async def _figures(host: Host) -> list[Figures]:
    rounds = host.sizes.rounds
    url = f"sqlite:///{host.new_file()}"
    await _fill(url, host.sizes.page_spans)
    server = ServerProcess((*SERVE, url), start_seconds=START_SECONDS)
    async with running(server), _browser() as browser:
        homes = [await _home(browser, server.url) for _ in range(rounds)]
        traces = [await _trace(browser, server.url, host.sizes.page_spans) for _ in range(rounds)]
    columns = [*zip(*homes, strict=True), *zip(*traces, strict=True)]
    return [{"ours": float(median(found))} for found in columns]


async def _fill(url: str, count: int) -> None:
    """Create rollouts in several states, and one with a trace of this many spans, ten below each."""
    async with Perdure(url, watchdog_interval=None) as perdure:
        store = perdure.store
        for number in range(200):
            started = await store.start_rollout({"question": number})
            if number % 4:
                status: AttemptStatus = "failed" if number % 3 else "succeeded"
                await store.update_attempt(started.rollout_id, "latest", status=status)
        started = await store.start_rollout({"question": "long"})
        for start in range(0, count, A_BATCH):
            await store.add_many_spans(
                [
                    _span(started.rollout_id, started.attempt.attempt_id, number)
                    for number in range(start, min(start + A_BATCH, count))
                ]
            )
        await perdure.services.recorder.record()
        await perdure.services.recorder.add_usage()


def _span(rollout_id: str, attempt_id: str, number: int) -> Span:
    call: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.usage.input_tokens": 900,
        "gen_ai.usage.output_tokens": 90,
    }
    return Span.from_attributes(
        attributes=call if number % 10 else {"step": number},
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=number + 1,
        name=f"step {number}",
        trace_id=TRACE,
        span_id=f"{number + 1:016x}",
        parent_id=f"{number // 10 * 10 + 1:016x}" if number % 10 else None,
        start_time=1_700_000_000.0 + number,
        end_time=1_700_000_005.0 + number,
    )


@asynccontextmanager
async def _browser() -> AsyncIterator[Any]:
    """Start the browser of the tests, and install it if it is missing."""
    from tests.support import browser

    await asyncio.to_thread(browser.main)
    async with browser.browsing() as started:
        yield started


@asynccontextmanager
async def _page(browser: Any) -> AsyncIterator[Any]:
    """Open a page with an empty cache."""
    context = await browser.new_context(viewport=VIEWPORT)
    try:
        page = await context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        await page.add_init_script(IN_PAGE)
        yield page
    finally:
        await context.close()


async def _home(browser: Any, url: str) -> tuple[float, float]:
    """Return kilobytes of its files as sent, and milliseconds until it is shown and idle."""
    async with _page(browser) as page:
        await page.goto(f"{url}/ui/")
        await page.wait_for_function(HOME_SHOWN)
        rested = await page.evaluate(f"() => window.bench.rest({QUIET_MS})")
        return await page.evaluate(SENT) / 1000, rested


async def _trace(browser: Any, url: str, count: int) -> tuple[float, float, float, float]:
    """Return milliseconds to read a trace and its longest task; frames/s and longest task of a scroll."""
    async with _page(browser) as page:
        await page.goto(f"{url}/ui/traces/{TRACE}")
        await page.get_by_text(f"Spans ({count:,})").wait_for()
        opened = await page.evaluate("() => (window.bench.shown = performance.now())")
        await page.evaluate(f"() => window.bench.rest({QUIET_MS})")
        longest = await page.evaluate("() => window.bench.longest()")
        await page.evaluate("() => { window.bench.tasks = []; }")
        frame = await page.query_selector(".waterfall")
        frames = await page.evaluate(f"frame => window.bench.scroll(frame, {SCROLLED_SECONDS})", frame)
        return opened, longest, frames, await page.evaluate("() => window.bench.longest()")
