"""One folder a command: its arguments and what it prints, its body, its Python function."""
