"""The loops of synchronous rounds and asynchronous runs."""
