"""`perdure` with a server that extracts from spans only what the list of traces shows."""

from bench.facts_rows import without_facts
from perdure.cli import main

if __name__ == "__main__":
    with without_facts():
        main()
