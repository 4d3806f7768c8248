"""Research on training, which no default run loads: tasks of one question, the worth of states and episodes."""
