"""Runs: what a worker does with the runs of threads: claim, renew, store, finish."""
