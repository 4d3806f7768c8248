"""Programs that a model wrote, run where they can reach nothing: docs/code.md says what is promised."""
