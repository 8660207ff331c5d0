"""What people see of a router and its pods while they work: the page at /ui and the events behind it."""
