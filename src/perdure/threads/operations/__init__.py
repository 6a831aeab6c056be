"""What changes threads and runs, each a function of a transaction."""
