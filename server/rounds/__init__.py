"""The loops of synchronous and asynchronous runs."""
