"""Policies: built from scratch or loaded, always transformers models."""

from transformers.utils import logging

logging.disable_progress_bar()  # rlvr shows its own progress
