"""What a fleet's facts mean: ``judging`` makes the records, ``rules`` and ``refusals`` say what is wrong."""
