"""Encoders that need torch. The only importer of torch."""
