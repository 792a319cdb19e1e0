"""What a run costs, as ratios measured side by side in one run."""
