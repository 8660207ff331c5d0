"""How pods exchange KV: both sides of every shipment, for every role. A pod dials as taker, serves as source."""
