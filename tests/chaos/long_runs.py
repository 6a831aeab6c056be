"""The long forms of the tests that search: models, simulations, faults, interleavings, stories.

Whatever they find is raised with the story, the seed or the example that leads there.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tests.chaos.scenario import Run

from perdure.testing.servers import PostgresServer

STEPS = 100
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


def interleave(run: Run) -> None:
    """Every order with up to so many switches that no lock enforces; 0 sets no bound."""
    from tests.reliability import test_interleavings

    with new_database() as url:
        orders = test_interleavings.run(url, run.size or None)
    run.facts["orders"] += sum(orders.values())
    run.facts["pairs"] += len(orders)
    run.advance(count=run.size)


def tell_stories(run: Run) -> None:
    from tests.reliability import stories

    for told in stories.run(run.size):
        run.facts["stories"] += told.stories
        run.facts["states"] += told.states
    run.advance(count=run.size)
