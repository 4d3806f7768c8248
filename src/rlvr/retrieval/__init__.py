"""Document retrieval: BM25, embeddings, hybrid, an oracle, and services."""
