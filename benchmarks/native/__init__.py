"""A prototype of the window in C, to be measured; the product has none."""
