"""The ops in Triton, for NVIDIA GPUs: kernels and the host code that launches them. Imports triton, and needs it."""
