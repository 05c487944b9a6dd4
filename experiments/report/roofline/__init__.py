"""The page of a network on a board's rooflines: performance and energy over intensity, and the plane of all modes."""
