"""The kinds of rollouts, and the creator of phases, for tests that wire services by hand."""

from perdure.runtime.stores import DatabaseKinds

KINDS = DatabaseKinds()
PHASES = KINDS.phases
