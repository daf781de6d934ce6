"""Messages and stubs of version 1 of the wire contract, generated from `translation.proto`."""
