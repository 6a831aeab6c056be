"""`python -m bench`: run the measures, print the table, write the results."""

import argparse
import asyncio
import signal
import sys
import time
from pathlib import Path

import msgspec

from bench import history, report
from bench.host import Host
from bench.measures import Measure
from bench.rows import all_measures
from bench.sizes import FULL, QUICK


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench", description="Measure perdure beside its peers and its engines."
    )
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, one round: to see that all of it runs"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="only the rows whose names contain one of these"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of a table")
    parser.add_argument("--list", action="store_true", help="list the rows and measure nothing")
    parser.add_argument("--no-peer", action="store_true", help="leave all peers out, and install none")
    parser.add_argument("--postgres", metavar="URL", help="use this server instead of starting one")
    parser.add_argument("--output", type=Path, default=report.RESULTS, help="where the results are written")
    parser.add_argument(
        "--record", metavar="VERSION", help="write the results into bench/history.jsonl as those of a release"
    )
    parser.add_argument(
        "--from", dest="earlier", type=Path, metavar="FILE", help="record the results of an earlier run"
    )
    return parser.parse_args()


def chosen(measures: list[Measure], only: list[str] | None, *, with_peer: bool = True) -> list[Measure]:
    """Return the runnable measures with a row whose name contains one of the words."""
    words = only or [""]
    possible = [each for each in measures if with_peer or not each.needs_peer]
    return [each for each in possible if any(word in row.name for row in each.rows for word in words)]


async def run(measures: list[Measure], options: argparse.Namespace) -> list[report.Result]:
    results = []
    sizes = QUICK if options.quick else FULL
    async with Host(sizes, with_peer=not options.no_peer, postgres_url=options.postgres) as host:
        for measure in measures:
            started = time.monotonic()
            if measure.needs_peer and await host.peer() is None:
                continue
            found = await measure.results(host)
            results += found
            figures = ", ".join(report.brief(each) for each in found)
            print(f"{figures} (in {time.monotonic() - started:.1f} s)", file=sys.stderr, flush=True)
    return results


def leave(number: int, frame: object) -> None:
    """Exit by an exception, so that the servers end too."""
    sys.exit(128 + number)


def main() -> int:
    options = arguments()
    if options.record and options.quick:
        print("a quick run says nothing about a release", file=sys.stderr)
        return 2
    sizes = QUICK if options.quick else FULL
    measures = chosen(all_measures(sizes), options.only, with_peer=not options.no_peer)
    if not measures:
        print("no row has such a name; --list shows them all", file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(f"{row.name:28} {row.what}" for measure in measures for row in measure.rows))
        return 0
    if options.earlier:
        results = report.read(options.earlier)
    else:
        results = asyncio.run(run(measures, options))
        report.write(results, options.output)
    if options.record:
        order = [row.name for measure in all_measures(FULL) for row in measure.rows]
        history.record(options.record, results, order)
        print("recorded; python docs/regenerate.py writes docs/benchmarks.md", file=sys.stderr)
    if options.json:
        print(msgspec.json.encode(results).decode())
    else:
        report.show(results)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, leave)
    sys.exit(main())
