"""What several test folders share: the registries as cases, small models, comparisons, golden arrays."""
