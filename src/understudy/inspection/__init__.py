"""Inspection: what is wrong with data that nobody may look at, found in the samples of their release."""
