"""What a claim finds wrong."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as asked."""

    component: str
    want: str
    have: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.component}: want {self.want}, have {self.have}; {self.remedy}"
