"""Pages and terminal tables of predictors and mode choice."""
