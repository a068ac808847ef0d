"""The Kafka protocol without any I/O: frames, headers, messages of every API and version, error codes.

- `wire.frames` cuts a stream into frames; `wire.headers` reads and writes what leads a request or response.
- `wire.registry` knows every API: its versions, header versions and codecs.
- `wire.schemas` holds one module for each API; its classes are the messages and their schema at once.
- `wire.compiler` turns such a class into functions that read and write one version of it.
- `wire.error_codes` has the codes that answers carry, `wire.errors` what this package raises.

Importing this package loads none of the schemas.
"""
