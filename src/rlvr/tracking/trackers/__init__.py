"""Experiment trackers, a class each: MLflow, Weights & Biases, TensorBoard, and the user's own.

Each works in a process of its own (`worker`), so whatever its library does (print, hang, crash, catch signals) stays
there; a thread of the run (`remote`) talks to it and gives it up when it takes too long. `fanout` is what a run uses.
"""
