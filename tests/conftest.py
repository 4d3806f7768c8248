"""Settings that must stand before torch is imported."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads on shared cores cost far more than they gain
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # one worker a core; the models are too small for more threads
