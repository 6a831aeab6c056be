"""Spans: records, rows, stored forms, OpenTelemetry and OTLP, and figures."""
