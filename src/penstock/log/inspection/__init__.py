"""Looking into a log's files without touching them: what they hold, and what is wrong with them."""
