"""Benchmarks of wiggle: `python -m benchmarks core`, `embedded`, `claim` and `crashes`. No part of the distribution."""
