"""Asset checks, and the evidence that they show."""
