"""How blocks travel between pods: shipments, leases, plans and transports."""
