"""Policies: built from scratch or loaded, always transformers models."""
