"""The long forms of the tests that search: models, simulations, faults, interleavings, stories.

Whatever they find is raised with the story, the seed or the example that leads there.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager

from tests.chaos.scenario import Run

from perdure.testing.servers import PostgresServer

STEPS = 100
TRACES = 10
"""How many requests with traces are made for each to a route."""
SHARES = (("memory", 3), ("sqlite", 1), ("postgres", 1))
"""How the examples of the model are spread over the engines, of which the last is the slowest."""


def chosen_size(variable: str, default: int) -> int:
    """A size from the environment."""
    return int(os.environ.get(variable, default))


@contextmanager
def new_database() -> Iterator[str]:
    with PostgresServer() as server:
        yield server.create_database("long-run")


def compare_with_model(run: Run) -> None:
    from tests.reliability import test_model

    steps = chosen_size("PERDURE_STEPS", STEPS)
    parts = sum(share for _, share in SHARES)
    with new_database() as url:
        for engine, share in SHARES:
            examples = max(run.size * share // parts, 1)
            test_model.run(engine, examples, steps, url)
            run.facts[f"examples on {engine}"] += examples
            run.advance(f"{engine}, {steps} steps each", examples)


def compare_workflows_with_model(run: Run) -> None:
    from tests.workflows import test_model

    steps = chosen_size("PERDURE_STEPS", STEPS)
    parts = sum(share for _, share in SHARES)
    with new_database() as url:
        places = {"memory": ":memory:", "sqlite": str(run.folder / "model.db"), "postgres": url}
        for engine, share in SHARES:
            examples = max(run.size * share // parts, 1)
            test_model.run(places[engine], examples, steps)
            run.facts[f"examples on {engine}"] += examples
            run.advance(f"{engine}, {steps} steps each", examples)


def simulate(run: Run) -> None:
    from tests.reliability import swarm

    for seed in range(run.seed, run.seed + run.size):
        result = swarm.simulate(seed)
        run.facts["commits"] += result.commits
        run.facts["crashes"] += result.crashes
        run.advance(f"seed {seed}")


def sweep_faults(run: Run) -> None:
    from tests.reliability import test_faults

    for _ in range(run.size):
        run.facts.update(test_faults.run())
        run.advance()


def sweep_connections(run: Run) -> None:
    from tests.reliability import test_lost_connections

    for _ in range(run.size):
        with new_database() as url:
            run.facts["connections lost"] += test_lost_connections.run(url)
        run.advance()


def crash_workflows(run: Run) -> None:
    """The process dies at every call of every operation of the workflow engine, on both engines."""
    from tests.workflows import test_crashes

    for number in range(run.size):
        with new_database() as url:
            for engine, place in (("sqlite", str(run.folder / f"{number}.db")), ("postgres", url)):
                run.facts[f"deaths on {engine}"] += asyncio.run(test_crashes.explore(place, every=True))
        run.advance()


def interleave(run: Run) -> None:
    """Every order with up to so many switches that no lock enforces; 0 sets no bound."""
    from tests.approvals import test_interleavings as of_approvals
    from tests.messaging import test_interleavings as of_messaging
    from tests.reliability import test_interleavings as of_rollouts
    from tests.schedules import test_interleavings as of_schedules
    from tests.threads import test_interleavings as of_threads
    from tests.workflows import test_interleavings as of_workflows

    for each in (of_rollouts, of_threads, of_schedules, of_approvals, of_messaging, of_workflows):
        with new_database() as url:
            orders = asyncio.run(of_rollouts.explore_all(url, each.PAIRS, run.size or None))
        run.facts["orders"] += sum(orders.values())
        run.facts["pairs"] += len(orders)
    run.advance(count=run.size)


def fire_for_a_year(run: Run) -> None:
    """A year of firings in simulated time, each exactly once."""
    from tests.schedules import test_year

    run.facts["firings"] += asyncio.run(test_year.simulate(min(run.size, 60)))
    run.advance(count=run.size)


def open_and_close_stores(run: Run) -> None:
    from tests.reliability import test_stress

    for number in range(run.size):
        folder = run.folder / str(number)
        folder.mkdir()
        with new_database() as url:
            test_stress.run(10, folder, url)
        run.advance()


def generate_requests(run: Run) -> None:
    """So many requests that fit the document, and so many that do not, to every route; and traces."""
    from tests.security import test_generated
    from tests.server import test_otlp_fuzz

    test_otlp_fuzz.run(run.size * TRACES)
    with new_database() as url:
        for label in test_generated.run(run.size, url):
            run.facts["routes"] += 1
            run.note = label
    run.advance(count=run.size)


def measure_every_row(run: Run) -> None:
    from tests import test_bench

    for _ in range(run.size):
        with PostgresServer(fsync=False) as server:
            run.facts["rows"] += test_bench.run(server.url(), run.folder)
        run.advance()


def tell_stories(run: Run) -> None:
    from tests.reliability import stories

    for told in stories.run(run.size):
        run.facts["stories"] += told.stories
        run.facts["states"] += told.states
    run.advance(count=run.size)
