"""Policies, from scratch or pretrained; always transformers models."""
