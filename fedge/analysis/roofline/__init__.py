"""Time and energy rooflines per power mode."""
