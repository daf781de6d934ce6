"""Who is decoded with whom, when and in which process: a client in the server, a core in the process that decodes."""
