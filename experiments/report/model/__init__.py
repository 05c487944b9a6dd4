"""What a learnt model says, on a terminal and as a page: its facts, a choice, the front of its modes."""
