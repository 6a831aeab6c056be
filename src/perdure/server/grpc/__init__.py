"""gRPC: OTLP, health, reflection and the memory service, on one port."""

import os

# Workflow commands start by forking. Without this, gRPC logs a line about its threads for each fork.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
