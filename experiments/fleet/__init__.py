"""What a fleet of real boards needs around a run: who may talk to whom, and the files that make it so."""
