"""What a sweep says in figures: statistics of a point, effects of a knob, how sure they are."""
