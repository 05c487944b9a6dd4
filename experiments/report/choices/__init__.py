"""What the studies of choosing found, on a terminal and as pages: regret, energy, time, against an oracle and MAXN."""
