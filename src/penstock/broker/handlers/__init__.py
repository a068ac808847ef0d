"""Handlers: one module per API, or per family of APIs. Each takes a decoded request and answers it, now or later."""
