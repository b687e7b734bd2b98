"""A noisy mean embedding and a generator that is fitted to it."""
