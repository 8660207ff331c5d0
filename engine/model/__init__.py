"""The decoder, and one file per architecture family that says how to build it from a Hugging Face config."""
