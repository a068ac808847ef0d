"""All of it at once: processes, the terminal's view, the page, the report."""
