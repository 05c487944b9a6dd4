"""Reports: one self-contained HTML page for a run, or for several side by side."""
