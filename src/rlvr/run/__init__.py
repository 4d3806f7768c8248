"""Puts a run together: a resolved configuration -> policy, tasks, engine, trainer, run folder.

`opened.opened` reads data and makes folder and model when they are asked for, `assemble.assemble` builds a training
from them, `inference.open_inference` opens a model for evaluation, `sources` resolves MODEL arguments. With the
commands the only rooms that know every part.
"""
