"""A whole cluster in one process, in virtual time: the product decides, everything around it is simulated by a seed."""
