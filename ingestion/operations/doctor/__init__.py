"""What may be wrong with an installation: facts, pure diagnoses of them, and a list of findings."""
