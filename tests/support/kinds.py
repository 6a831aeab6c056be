"""The kinds of rollouts for tests that wire services by hand, and what creates their phases."""

from perdure.runtime.stores import DatabaseKinds

KINDS = DatabaseKinds()
PHASES = KINDS.phases
