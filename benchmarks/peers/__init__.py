"""The queue libraries that wiggle is raced against, each drained in a process of its own as its documentation says."""
