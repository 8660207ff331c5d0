"""Tool calls in the text of a model: how each family writes them, read as they grow, and forced by a grammar."""
