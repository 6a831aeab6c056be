"""A graph that cannot be imported; the others are served all the same."""

raise RuntimeError("this module is broken on purpose")
