"""Known bugs, planted one by one: each must be caught by the test that is named after it."""
