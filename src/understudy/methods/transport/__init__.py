"""Generated images matched with private ones by optimal transport."""
