"""Benchmarks of wiggle: `python -m benchmarks core`, `embedded` and `crashes`. No part of the distribution."""
