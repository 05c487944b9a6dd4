"""The report of a run or of several runs."""
