"""Federated training: each client keeps its data, its critic and its ledger; only sanitized answers leave it."""
