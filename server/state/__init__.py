"""State that the server keeps of the run and of every client."""
