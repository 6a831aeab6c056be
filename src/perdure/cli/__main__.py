"""Entry point of `python -m perdure.cli`."""

from perdure.cli import main

main()
