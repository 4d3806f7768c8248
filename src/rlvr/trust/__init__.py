"""What can be said of a run, a model and a reward before it is trusted."""
