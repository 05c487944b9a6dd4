"""The way to clients, in process and over Flower."""
