"""The peer aegra, served with `--port` as its own command serves it.

Run as `python -m bench.peer_aegra` in the peer's environment. aegra makes ids in the database by an extension
which a small PostgreSQL may lack; a function of the same name, made of what every PostgreSQL has, stands in.
"""

import importlib
import sys
from typing import Any

STAND_IN = """
CREATE OR REPLACE FUNCTION public.uuid_generate_v4() RETURNS uuid LANGUAGE sql AS 'SELECT gen_random_uuid()'
"""


def replace_extension() -> None:
    """Let migrations make the function instead of the extension."""
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
