"""Incidents in the console: what is known of each, the one question about it, and the answers.

The store keeps every change as it was published, and answers on their way to the pipeline's control
log (`incident_store`); `readings` are what an incident is about, and a `screen` shows all of it.
"""
