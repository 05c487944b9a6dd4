"""The dashboard: live views, telemetry ingest and metrics."""
