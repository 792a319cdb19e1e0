"""Who reads our tables beside the product."""
