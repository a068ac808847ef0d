"""One module for each API: the request, the response, and the structs inside them."""
