"""Measures of perdure beside a peer and beside its engines' raw limits, all in one run (`./dev bench`)."""
