"""What may be wrong with an installation: facts, and pure diagnoses of them.

Gathering changes nothing and takes no lock, so a doctor may be called while runs go on. What
cannot be found out is a finding, too: unknown is not healthy.
"""
