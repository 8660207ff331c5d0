"""How pods are chosen: what a policy sees (`view`), what it answers (`placement`), and one file for each policy."""
