"""Measuring a plan so that it can be killed: which point next, and what of it is kept on the disk."""
