"""perdure inside a program: the database, a worker, and optionally a server for its page and command."""
