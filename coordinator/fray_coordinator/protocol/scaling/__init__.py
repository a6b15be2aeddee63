"""Decisions about machines: which ones a pool needs, asks for, keeps and gives up.

A run of the scaler takes a `view` of one pool. `demand` says what its waiting work needs, `planning` which machines are
asked for and released, `machines` what follows from what the provider lists, and `provisioning` where the run may act
at all. `shares` says what the machines cost and for whom.
"""
