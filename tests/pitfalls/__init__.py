"""Bugs that break RL training silently, planted one by one; a named test must fail for each of them."""
