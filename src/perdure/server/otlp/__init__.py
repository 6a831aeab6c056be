"""The OpenTelemetry protocol: spans over OTLP, by HTTP and by gRPC."""
