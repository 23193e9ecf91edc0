"""The demonstration: the real flights of 2013 from New York, routed as tasks to workers with criteria of their own."""
