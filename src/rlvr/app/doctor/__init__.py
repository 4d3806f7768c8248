"""`rlvr doctor`: the run's own parts, tried on the user's model, tokenizer, template, data and reward."""
