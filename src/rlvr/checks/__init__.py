"""What `rlvr doctor` asks of a model with its task: the checks by subject, and the patient that they examine."""
