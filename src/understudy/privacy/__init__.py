"""The privacy core: events, accounting, mechanisms, randomness, ledger and certificate. No training code here."""
