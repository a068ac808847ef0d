"""The pages of the console: each takes a visit, and returns HTML or makes a change."""
