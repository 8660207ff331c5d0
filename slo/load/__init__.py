"""A workload played against a running server, whatever it speaks."""
