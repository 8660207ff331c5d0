"""What steps, links and frames take: measured at a running cluster, or read off a data sheet."""
