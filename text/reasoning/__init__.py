"""The reasoning that a model writes before its answer: how each family marks it, told apart as it grows, and let be."""
