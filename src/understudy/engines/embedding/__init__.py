"""The noisy mean embedding: its features, its release, the fit of a generator, the start of another method from it."""
