"""Data of other systems, brought into a perdure database: what is there already is left as it is."""
