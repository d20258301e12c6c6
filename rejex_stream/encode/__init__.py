"""The wire form: outcomes in, JSON bytes out, and back; one form for files, topics and the store.

In: verdicts, review items, dead letters, incidents, commands. Out: bytes, the same for equal
outcomes. Open `records` first; `schemas` says what they look like.
"""

from rejex_stream.encode.records import (
    DeadLetterRecord,
    FollowUpRecord,
    Form,
    IncidentRecord,
    LeanVerdictRecord,
    ReplyRecord,
    ReviewRecord,
    VerdictEncoder,
    VerdictRecord,
    decode_command,
    decode_dead_letter,
    decode_incidents,
    decode_review,
    decode_reviewed,
    decode_verdict,
    encode_command,
    encode_dead_letter,
    encode_follow_up,
    encode_incident,
    encode_lean_verdict,
    encode_reply,
    encode_review,
    encode_verdict,
)

__all__ = [
    "DeadLetterRecord",
    "FollowUpRecord",
    "Form",
    "IncidentRecord",
    "LeanVerdictRecord",
    "ReplyRecord",
    "ReviewRecord",
    "VerdictEncoder",
    "VerdictRecord",
    "decode_command",
    "decode_dead_letter",
    "decode_incidents",
    "decode_review",
    "decode_reviewed",
    "decode_verdict",
    "encode_command",
    "encode_dead_letter",
    "encode_follow_up",
    "encode_incident",
    "encode_lean_verdict",
    "encode_reply",
    "encode_review",
    "encode_verdict",
]
