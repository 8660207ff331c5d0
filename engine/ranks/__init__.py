"""A pod of several ranks: one engine process for each, of which the first schedules and all compute."""
