"""A GPU/InfiniBand lab without the hardware. Imports nothing of the product; the product imports nothing of it."""
