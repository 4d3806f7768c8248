"""Experiment trackers, a class each: MLflow, Weights & Biases, TensorBoard, and the user's own.

Each is served by a thread of its own (`thread`), which the run never waits for and gives up when it fails or takes too
long. `fanout` is what a run uses.
"""
