"""Diagnosis of an installation: facts, pure judgements of them, and a list of findings."""
