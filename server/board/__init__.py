"""The board page: what a fleet does now and did before, as a web page, as events and as Prometheus metrics."""
