"""Training: optimizer groups, callbacks, metrics, the cost meter, and the run."""
