"""The server: the round loop, aggregation by Flower's strategies, checkpoints; and the Flower ServerApp around it."""
