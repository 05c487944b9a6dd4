"""The fleet planner: from every board's front to one plan for the round; pure and exact."""
