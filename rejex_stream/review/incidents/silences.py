"""A shelved or acknowledged incident pages nobody: Alertmanager silences its alert for so long.

The store knows what is shelved, and what was acknowledged as it stands; Alertmanager's silences are
updated whenever they differ: a silence of ours names the incidents of one situation of one
pipeline, since any of them may have been told of first, and is known by its comment. So nothing has
to be remembered here, a console that starts again goes on where another stopped, and shelving that
ends early, or an incident that comes back, ends its silence. The worker knows nothing of it:
alerts, verdicts and their order stay.
"""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import datetime
from typing import Any
from urllib.parse import quote

import msgspec

from rejex_stream.addresses import masked
from rejex_stream.errors import ConnectorError
from rejex_stream.operate.alerts import http_request
from rejex_stream.readable import utc
from rejex_stream.review.incidents.incident_store import Care, care_of, open_incidents, quiet_care
from rejex_stream.review.queue.review_store import ReviewStore

_COMMENT = "rejex-stream: {} in the review console"
_OURS = (_COMMENT.format("shelved"), _COMMENT.format("acknowledged"))
_TIMEOUT_S = 5.0


class Silences:
    """The silences of one pipeline's incidents in one Alertmanager."""

    def __init__(self, url: str, pipeline: str) -> None:
        self._api, self._pipeline = url.rstrip("/") + "/api/v2", pipeline
        self._held: dict[str, int] | None = None  # shelved until, as Alertmanager has it

    def bring_in_line(self, store: ReviewStore) -> bool:
        """Silence what is shelved and nothing else; returns whether anything was changed.

        What Alertmanager does not take is a ConnectorError, and tried again the next time.
        """
        now_ms, cares = store.now_ms(), defaultdict[str, list[tuple[str, Care]]](list)
        with store.database.read() as connection:
            for one in open_incidents(connection):
                if one.pipeline == self._pipeline:
                    care = care_of(connection, one.incident, now_ms)
                    cares[one.situation].append((one.incident.id, care))
        shelved = dict[str, Care]()
        for situation, those in cares.items():
            quiet = quiet_care([care for _, care in those], now_ms)
            if quiet is not None:
                others = [] if len(those) < 2 else [incident for incident, _ in those]
                names = sorted({situation, *others})
                shelved["|".join(re.escape(one).replace(r"\-", "-") for one in names)] = quiet
        wanted = {incident: care.quiet_until_ms for incident, care in shelved.items()}
        if wanted == self._held:
            return False
        try:
            known = self._standing()
            for incident, (silence, until_ms) in known.items():
                if wanted.get(incident) != until_ms:
                    self._ask("DELETE", f"silence/{silence}")
            for incident, care in shelved.items():
                if incident not in known or known[incident][1] != care.quiet_until_ms:
                    self._ask("POST", "silences", self._silence(incident, care, now_ms))
        except (OSError, msgspec.DecodeError) as error:
            raise ConnectorError(
                f"Alertmanager at {masked(self._api.removesuffix('/api/v2'))} did not take which "
                f"incidents are shelved ({error}): check alerts.alertmanager_url."
            ) from error
        self._held = wanted
        return True

    def _standing(self) -> dict[str, tuple[str, int]]:
        """Return our silences that have not ended, by incident: (id, shelved until)."""
        mine = quote(f'pipeline="{self._pipeline}"')
        silences = {}
        for silence in self._ask("GET", f"silences?filter={mine}") or ():
            if not silence["comment"].startswith(_OURS) or silence["status"]["state"] == "expired":
                continue
            names = {matcher["name"]: matcher["value"] for matcher in silence["matchers"]}
            until = datetime.fromisoformat(silence["endsAt"])
            silences[names.get("incident", "")] = silence["id"], round(until.timestamp() * 1000)
        return silences

    def _silence(self, incident: str, care: Care, now_ms: int) -> dict[str, Any]:
        labels = {"pipeline": self._pipeline, "incident": incident}
        what, by = (
            ("shelved", care.shelved_by)
            if care.shelved_by
            else ("acknowledged", care.acknowledged_by)
        )
        return {
            "matchers": [{"name": name, "value": value, "isRegex": name == "incident",
                          "isEqual": True}
                         for name, value in labels.items()],
            "startsAt": utc(now_ms).isoformat(),
            "endsAt": utc(care.quiet_until_ms).isoformat(),
            "createdBy": by,
            "comment": f"{_COMMENT.format(what)} by {by}",
        }  # fmt: skip

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": "application/json"}
        with http_request(method, f"{self._api}/{path}", data, headers, _TIMEOUT_S) as answer:
            body_read = answer.read()
        return msgspec.json.decode(body_read) if body_read else None
