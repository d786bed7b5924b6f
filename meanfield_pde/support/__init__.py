"""What all packages share: values checked, files written whole, ranks that agree, threads.

In come values and files that a user gives, and work that one rank does for all; out come values
that can be relied on, one message for all ranks, and files that are never half written.
"""
