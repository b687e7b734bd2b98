"""Teachers on disjoint shards that vote."""
