"""The web page of a run: one document, one style sheet, one script, and the state of the run as JSON."""
