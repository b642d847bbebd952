"""The agent's audit log, and what must be true of it."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Term:
    """A lease from its grant to its end, in seconds since boot."""

    container: str | None
    devices: tuple[str, ...]
    addresses: tuple[str, ...]
    start: float
    end: float | None = None

    def covers(self, at: float) -> bool:
        return self.start <= at and (self.end is None or at <= self.end)


def terms(state_dir: Path) -> list[Term]:
    """All leases that there were, by their grants."""
    found, open_terms = [], {}
    for line in (state_dir / "audit.log").read_text().splitlines():
        line = json.loads(line)
        lease = line["lease"]
        if line["event"] == "grant":
            if line.get("again"):
                continue
            assert line["id"] not in open_terms, f"granted twice: {line}"
            term = Term(
                lease["holder"]["container"],
                tuple(device["uuid"] for device in lease["devices"]),
                tuple(str(device["address"]) for device in lease["devices"]),
                line["uptime"],
            )
            open_terms[line["id"]] = term
            found.append(term)
        else:
            open_terms.pop(line["id"]).end = line["uptime"]
    return found


def check(found: list[Term]) -> None:
    """Nobody ever held a device that another one held."""
    holders = {}
    for term in sorted(found, key=lambda term: term.start):
        for device in term.devices:
            before = holders.get(device)
            assert before is None or (before.end is not None and before.end <= term.start), (
                f"{device} was given to {term} while {before} had it"
            )
            holders[device] = term
