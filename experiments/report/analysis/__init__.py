"""Pages and tables of the analyses."""
