"""A sweep that searches: Optuna proposes points, each is trained in a process, and the hopeless ones are pruned."""
