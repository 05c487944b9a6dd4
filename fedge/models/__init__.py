"""A learnt model of one board and workload: from what it is learnt, and the file that keeps it."""
