"""What each command of the launcher does."""
