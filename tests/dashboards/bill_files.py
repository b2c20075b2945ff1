"""Files of bills in FOCUS for tests."""

import gzip
from collections.abc import Iterable, Mapping
from pathlib import Path

from fleet.money.bill import BilledNames, NodeName, billed_names

NAMES: BilledNames = billed_names({NodeName("c1", "n1"): ["aws:///eu-west-1a/i-1"], NodeName("c1", "n2"): []})
ROW = {
    "BilledCost": "1.10",
    "EffectiveCost": "1.05",
    "BillingAccountId": "payer",
    "BillingCurrency": "USD",
    "BillingPeriodStart": "2026-01-01T00:00:00Z",
    "BillingPeriodEnd": "2026-02-01T00:00:00Z",
    "ChargeCategory": "Usage",
    "ChargePeriodStart": "2026-01-05T00:00:00Z",
    "ChargePeriodEnd": "2026-01-06T00:00:00Z",
    "CommitmentDiscountId": "",
    "InvoiceId": "",
    "InvoiceIssuerName": "AWS",
    "ResourceId": "i-1",
    "ResourceName": "",
    "SubAccountId": "9",
    "x_Line": "0",
}


def bill_bytes(rows: Iterable[Mapping[str, str]]) -> bytes:
    """Rows as CSV, each what differs from `ROW`; a line number keeps them apart."""
    lines = [",".join(ROW)]
    for number, row in enumerate(rows):
        lines.append(",".join({**ROW, "x_Line": str(number), **row}.values()))
    return "\n".join(lines).encode() + b"\n"


def a_bill(path: Path, *rows: Mapping[str, str]) -> Path:
    """The same as a file, compressed by its name."""
    data = bill_bytes(rows)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path
