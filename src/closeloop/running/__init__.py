"""Attempts in the making: here or on a cluster, within what an experiment may use."""
