"""Diffusion models: a network that takes noise away, trained by DP-SGD."""
