"""Translation of uploaded documents: reading uploads, reading and writing files in a child process, and the work."""
