"""Secret randomness: streams of noise and coins, the words they are made of, and their kernel for a graphics card."""
