"""Incidents in the console: what is known of each, the one question about it, and the answers.

The store keeps every change as it was published (`kept`), an answer is a command on its way to the
pipeline's control log (`answers`), and a screen shows both (`screen`).
"""
