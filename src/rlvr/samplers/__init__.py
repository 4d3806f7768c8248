"""The samplers of `sampler=NAME`: which prompts are drawn, on the interface of `base.py`."""
