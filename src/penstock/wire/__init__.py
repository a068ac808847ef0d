"""The Kafka protocol without I/O: framing, headers, messages of every API and version, error codes.

- `wire.protocol` lists the APIs with their versions, and the error codes.
- `wire.framing` splits a stream into frames and reads and writes request and response headers.
- `wire.schemas` has one module per API; its classes, declared with `wire.types`, are messages and schema at once.
- `wire.layout` and `wire.codec` turn such a class into functions that read and write one version of it.
- `wire.errors` has what this package raises.

Importing this package loads no schema.
"""
