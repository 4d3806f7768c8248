"""Experiment trackers: MLflow, Weights & Biases, TensorBoard get the numbers of metrics.jsonl, too.

Each library runs in a process of its own (`worker`), so that whatever it does (print, hang, crash, catch signals) stays
there; a thread of the run (`remote`) talks to it and gives it up when it takes too long. `fanout` is what a run uses.
"""
