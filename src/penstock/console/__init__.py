"""The web console: pages about a cluster, for any that speaks the Kafka protocol.

It uses the client only, so `penstock console -b any-kafka:9092` works as the console of a broker does. A broker does
not run it on its event loop: it passes what is not `/metrics` or `/health` to a child process that runs this package.
"""
