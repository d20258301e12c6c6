"""Records that are moved from topic to topic, each exactly once: redriven, or given a key.

`deadletters` puts back what could not be read, `rekey` copies a topic without keys to one that has
them.
"""
