"""Federations on real machines: credentials, Flower's processes, the ServerApp, and clients that run only own code."""
