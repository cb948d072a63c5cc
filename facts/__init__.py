"""What is read from a host, and the pure parsers. Imports nothing of the project."""
