"""What survives: the ledger, the objects, the points. Each SDK is imported by one file here."""
