"""Importing it lets this process, and those that it forks, not wait for the disk: a run does so 27 times, for 0.1 s.

That what must survive a power cut is synced, and in which order, is what `unit/training/test_checkpoint.py` looks at.
"""

import os

os.fsync = lambda descriptor: None
