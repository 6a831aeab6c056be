"""The OpenTelemetry door: spans over OTLP, by HTTP and by gRPC."""
