"""A folder or a store: where files lie, who may write there, and what fails in it."""
