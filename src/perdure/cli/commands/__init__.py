"""Client commands, one file for each noun."""
