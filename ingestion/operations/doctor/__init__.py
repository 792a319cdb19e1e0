"""What may be wrong with an installation: facts, pure diagnoses of them, and a list of findings.

Gathering changes nothing and takes no lock, so a doctor may be called while runs go on. What
cannot be found out is a finding, too: unknown is not healthy.
"""
