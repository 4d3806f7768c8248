"""Research on training, which no default run loads: tasks that isolate one question, the worth of states and episodes."""
