"""The front door: HTTP and gRPC, tokenizer, placement, prefix index."""
