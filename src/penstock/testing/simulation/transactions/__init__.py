"""Transactions in simulated runs: producers and processors, the rules they are judged by, faults, mutations."""
