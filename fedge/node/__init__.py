"""A real board's side of a run: its own sockets and sensors in place of the emulated ones, the same round."""
