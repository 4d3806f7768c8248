"""Counts in Prometheus' words."""

from rlvr.serve.endpoint import Metrics


def test_buckets_of_the_histogram_are_cumulative() -> None:
    metrics = Metrics()
    for seconds in (0.02, 0.02, 0.3, 1000.0):
        metrics.took(seconds)
    lines = metrics.text(running=1, waiting=2).splitlines()
    buckets = [line.split()[1] for line in lines if line.startswith("rlvr_request_seconds_bucket")]
    assert buckets == ["0", "2", "2", "2", "3", "3", "3", "3", "3", "3", "3", "3", "4"]
    bounds = [line.split('"')[1] for line in lines if line.startswith("rlvr_request_seconds_bucket")]
    assert bounds == [
        "0.01",
        "0.05",
        "0.1",
        "0.25",
        "0.5",
        "1.0",
        "2.5",
        "5.0",
        "10.0",
        "30.0",
        "60.0",
        "300.0",
        "+Inf",
    ]
    assert "rlvr_request_seconds_count 4" in lines
    assert "rlvr_request_seconds_sum 1000.34" in lines
