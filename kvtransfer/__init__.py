"""How blocks travel between pods: shipments, leases, tickets, transports. Knows nothing of engines or links."""
