"""The composition root: turns a configuration into a run. The only package that knows every component.

`train.train` runs one, `inference.open_inference` opens a model for evaluation, `sources` resolves MODEL arguments.
"""
