"""The pipelines: one module each. `engine` runs them."""
