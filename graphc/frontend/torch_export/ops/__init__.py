"""Converters of ATen operators, one family per file, each with its table."""
