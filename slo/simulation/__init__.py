"""A cluster in virtual time: the product's own decisions, played against a cost model."""
