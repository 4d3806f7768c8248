"""What a run writes down and others read: metrics, rollouts, graded answers, what doctor reports."""
