"""What a minibatch of a workload costs on a board: calibrated coefficients, estimates for other boards, and priors."""
