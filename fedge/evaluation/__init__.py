"""Judges predictors on measured tables: what they may know, what they profile, how far off they are, what they cost."""
