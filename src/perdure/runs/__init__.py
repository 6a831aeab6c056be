"""Work of workers on runs: claim, renew, store, finish."""
