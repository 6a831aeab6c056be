"""OTLP: spans over HTTP and gRPC."""
