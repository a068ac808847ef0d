"""Commands for access control."""
