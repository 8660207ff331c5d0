"""The wire contract: the .proto files and the code generated from them, which make protos writes."""
