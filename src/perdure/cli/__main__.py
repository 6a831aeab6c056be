"""`python -m perdure.cli` is `perdure`."""

from perdure.cli import main

main()
