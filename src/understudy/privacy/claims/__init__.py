"""Figures that depend on the data: the Bayesian accountant and the agreement of votes. Never a guarantee."""
