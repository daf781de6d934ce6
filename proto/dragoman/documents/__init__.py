"""Translation of files: formats, and the translator that sends their texts to a server."""
