"""One file per way that bytes take; `kvtransfer/transport.py` is the contract of all of them."""
