"""The Flower ClientApp: a thin adapter between Flower messages and a client's round."""
