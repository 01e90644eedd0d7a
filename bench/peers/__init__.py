"""Mixture-of-Experts layers of several engines, timed in turns on the same weights and tokens."""
