"""The faults, by where they come from: decoding, connections, the machine."""
