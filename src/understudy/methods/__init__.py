"""Methods: one file per paper, a registry, and the protocol they share."""
