"""Files that ``fedge new`` writes: a plug-in of each kind, which works as it stands, and the test of its contract."""
