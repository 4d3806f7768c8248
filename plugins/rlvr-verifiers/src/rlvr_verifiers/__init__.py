"""Environments of the verifiers library as tasks of rlvr: the entry point `task.verifiers`."""
