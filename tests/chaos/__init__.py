"""Long runs that kill, crash and tear what a store stands on, and compare what is left with what was seen."""
