"""Pages and terminal tables of the analysis commands."""
