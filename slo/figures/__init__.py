"""What became of requests, and what it comes to: records, objectives, summaries, runs held against each other."""
