"""Time and power models of one step of a workload on a board: calibrated, estimated for other boards, and priors."""
