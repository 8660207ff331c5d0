"""The shared vocabulary: values, errors, time and configuration. Standard library only."""
