"""Puts a run together: a resolved configuration -> policy, tasks, engine, trainer, run folder.

`assemble.assemble` builds the parts of a training, `inference.open_inference` opens a model for evaluation, `sources`
resolves MODEL arguments. With the commands the only rooms that know every part.
"""
