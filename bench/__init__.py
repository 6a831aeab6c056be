"""Benchmarks of perdure against peers and the raw limits of its engines, all in one run (`./dev bench`)."""
