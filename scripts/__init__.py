"""Entry points: the `pagegate` command line, sample documents, services for tests."""
