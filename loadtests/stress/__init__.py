"""What a server must survive: hours of everything at once, callers who leave, faults, bad inputs."""
