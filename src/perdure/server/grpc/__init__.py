"""gRPC: OTLP, health, reflection and the memory service, on one port."""

import os

# Commands of workflows are started by forking: gRPC would log a line about its threads for each.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
