"""What is asked of a server, and when: recordings, what is made up, and what becomes of either."""
