"""A run of everything: processes, what is known of them, the terminal and the page."""
