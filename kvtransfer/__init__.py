"""How blocks travel between pods: shipments, leases, tickets, transports. Knows nothing of engines or links.

At a source, from what decides to what moves bytes, and at a taker the other way round:

    OutgoingShipment -> Sender: StreamSender -> OutgoingStream -> Outbox (whose turn it is) -> Outlet, of a Carrier
    Inlet, of a Carrier <- Placer <- Inbox (whose turn it is) <- IncomingStream <- Receiver: StreamReceiver
                                       '-> Sink: Intake -> IncomingShipment

`transport` has the contract of both ends, `carrier` the seam beneath it, `wire` the messages between them.
"""
