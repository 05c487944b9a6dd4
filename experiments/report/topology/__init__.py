"""What is shown of a search for smaller networks: lines and tables for a terminal, and a page."""
