"""Searching documents: BM25, embeddings, both, an oracle, and services."""
