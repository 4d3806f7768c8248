"""Document retrieval: BM25, features, embeddings, hybrid, an oracle, and services."""
