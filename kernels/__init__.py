"""One public signature per op; import it as pagewire.kernels, never as kernels."""
