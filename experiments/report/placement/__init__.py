"""A plan of inference over accelerators, shown on a terminal and as a page."""
