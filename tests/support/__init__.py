"""What several test folders share: registries as cases, small models, comparisons, arrays."""
