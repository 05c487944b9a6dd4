"""Reports: a self-contained HTML page for one run, or for several runs side by side."""
