"""`rlvr audit`: can a verifier be trusted?

rewrites.py    right answers written in other ways, wrong answers that look like the right one
exploits.py    texts without an answer that careless verifiers pay for
judge.py       grades all of them, counts by kind
adversary.py   a tiny model trained on reward minus metric
run.py         opens the task, and puts these together
"""
