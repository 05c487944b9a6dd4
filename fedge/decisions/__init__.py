"""Decide purely: policies, plans for the fleet, client selection and the choice of a power mode."""
