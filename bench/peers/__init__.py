"""Times Mixture-of-Experts layers of several engines in turns, on the same weights and tokens."""
