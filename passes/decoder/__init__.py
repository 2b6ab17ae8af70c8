"""Derives the paged, ragged `step` of a causal language model from its plain export."""
