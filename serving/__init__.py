"""What every process does that is not its job: links, gRPC, health, drain, metrics, codecs."""
