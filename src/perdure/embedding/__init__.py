"""perdure embedded in a program: the database, a worker, and optionally a server for the page and command."""
