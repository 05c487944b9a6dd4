"""Time, energy and the rows of a round."""
