"""Policies: built from scratch or loaded, always transformers models."""

from logging import ERROR, getLogger

from transformers.utils import logging

logging.disable_progress_bar()  # rlvr shows its own progress
getLogger("bitsandbytes").setLevel(ERROR)  # imported with every adapter, it tells that an optional package is missing
