"""`python -m tests.chaos.server`: the real server over a store that also writes down each ending."""

import argparse
import asyncio

from tests.chaos.stores import open_storage, store_over

from perdure.runtime.app import App
from perdure.server.http.server import HttpServer
from perdure.server.table import build_application


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", required=True, metavar="PATH|URL")
    parser.add_argument("--watchdog-interval", type=float, default=0.25, metavar="SECONDS")
    parser.add_argument("--port", type=int, required=True)
    return parser.parse_args()


async def serve(database: str, watchdog_interval: float, port: int) -> None:
    store = store_over(open_storage(database), "default", watchdog_interval)
    try:
        await HttpServer(build_application(App(store)), port=port).serve()
    finally:
        await store.close()


def main() -> None:
    options = arguments()
    asyncio.run(serve(options.database, options.watchdog_interval, options.port))


if __name__ == "__main__":
    main()
