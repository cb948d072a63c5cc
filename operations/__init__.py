"""What changes a host; mirrors ``facts``."""
