"""The peer aegra, served with `--port` as its own command serves it.

Run as `python -m bench.peer_aegra` in the peer's environment. aegra creates ids in the database with an
extension that a small PostgreSQL may lack; an equivalent SQL function replaces it.
"""

import importlib
import sys
from typing import Any

STAND_IN = """
CREATE OR REPLACE FUNCTION public.uuid_generate_v4() RETURNS uuid LANGUAGE sql AS 'SELECT gen_random_uuid()'
"""


def replace_extension() -> None:
    """Let migrations create the function instead of the extension."""
    migrations: Any = importlib.import_module("alembic.op")
    execute = migrations.execute

    def instead(statement: Any, *rest: Any, **more: Any) -> Any:
        wanted = "uuid-ossp" in str(statement)
        return execute(STAND_IN if wanted else statement, *rest, **more)

    migrations.execute = instead


def main() -> None:
    replace_extension()
    uvicorn: Any = importlib.import_module("uvicorn")
    port = int(sys.argv[sys.argv.index("--port") + 1])
    uvicorn.run("aegra_api.main:app", host="127.0.0.1", port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
