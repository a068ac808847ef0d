"""The site: members, items and servers, and what they do."""
