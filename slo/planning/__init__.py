"""The cheapest cluster that keeps its promises, found with the simulator."""
