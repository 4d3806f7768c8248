"""The composition root: the only place that knows every component. A configuration comes in, a run comes out.

`train.train` runs one, `inference.open_inference` tries a model; `sources` says what MODEL stands for in a command.
"""
