"""Figures for generated images: Fréchet Inception distance, Inception score, downstream accuracy."""
