"""The board page: live views, telemetry intake and metrics."""
