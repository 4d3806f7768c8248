"""Experiment trackers: MLflow, Weights & Biases, TensorBoard, and the user's own; runs use `fanout`."""
