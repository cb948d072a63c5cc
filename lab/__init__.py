"""A GPU/InfiniBand lab without the hardware. It and the product import nothing of each other."""
