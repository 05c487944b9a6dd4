"""Backends that run an experiment; the only package that imports both the client and the server programs."""
