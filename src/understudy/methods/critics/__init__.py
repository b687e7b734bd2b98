"""Critics on disjoint subsets whose sanitized slopes teach a generator."""
