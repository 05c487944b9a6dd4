"""Pages and tables about predictors and mode choice."""
