"""Test vectors of the storage contract: `make vectors` writes `layouts/vectors/`, which any language's tests can run.

Each file says what its cases are about; a case has an input and what the code makes of it. Nothing here is random.
"""
