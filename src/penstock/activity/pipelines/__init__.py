"""The pipelines: a module each, one way to run them."""
