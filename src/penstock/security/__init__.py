"""Who speaks to a broker, and what they may do: identity, credentials, access control, quotas.

Modules here are used by brokers and clients alike. They decide; `broker` and `client` carry out.
"""
