"""Bodies of the commands."""
