"""One self-contained HTML page about a run, an evaluation or a benchmark: `rlvr report`."""
