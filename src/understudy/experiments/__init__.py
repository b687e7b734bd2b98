"""Several runs together: points of a sweep or methods side by side, what they spend in all, and their curves."""
