"""A file an API: each takes a decoded request and answers it, now or later."""
