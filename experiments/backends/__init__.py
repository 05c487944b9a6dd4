"""The backends that run an experiment; the one place that imports both the clients' and the server's programs."""
