"""MuSiQue for the verifiers library: an environment for 0.3.1, a taskset for 0.4, with the same tools and rewards."""

import importlib.metadata

if importlib.metadata.version("verifiers") == "0.3.1":
    from vf_musique_environment import MusiqueEnv, load_environment

    __all__ = ["MusiqueEnv", "load_environment"]
else:
    from vf_musique_taskset import MusiqueTaskset

    __all__ = ["MusiqueTaskset"]
