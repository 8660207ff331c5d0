"""The decode pod, and the colocated one."""
