"""Audits: empirical lower bounds on epsilon, by attacks on the real mechanisms and on whole runs."""
