"""Files that an operator hands us, or that lie in the data folder: settings, prices, rights, plans, traces, tokens."""

from __future__ import annotations

import hashlib
import json
import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet

from dashboards.access.oidc import OidcSignIn, Provider
from dashboards.access.roster import Roster
from dashboards.money.import_bill import import_files
from dashboards.money.kept_bill import read_bill, write_bill
from enforcer.record.fingerprint import fingerprint_from_json
from exporter.trace.trace import open_trace
from fleet.catalogue import parse_catalogue
from fleet.decisions import Saving
from fleet.documents import outcome_document, outcome_of, plan_from_json, plan_to_json, seal_plan
from fleet.inventory import WorkloadId
from fleet.money.bill import NodeName
from fleet.outcomes import Outcome, WorkloadOutcome
from fleet.settings.price_book import parse_price_book, parse_price_csv
from fleet.settings.settings import load_settings
from gputide.container.bill import read_map
from gputide.container.measured_pairs import read_measured_pairs
from gputide.operate.backup_list import LIST_NAME, read_list
from pipeline.receiver.senders import Senders
from tests.dashboards.bill_files import NAMES, ROW, a_bill, bill_bytes
from tests.exporter.builders import TraceFiles
from tests.fleet.test_documents import a_plan
from tests.fuzz.parsers import Parser, text_of
from tests.fuzz.parsers_cluster import of_file, scratch_file

_SETTINGS = b"""[cluster]
name = "c1"
[receiver]
body_bytes_max = "32MiB"
tokens_file = "tokens"
senders = { edge = { cluster = "c2", series_max = 10 } }
[prices]
overrides = { "NVIDIA A10" = 0.9 }
[[prices.rules]]
card_model = "NVIDIA A10"
per_card_hour = 0.79
source = "contract"
date = 2026-01-12
[analyzer]
idle_ratio_max = 0.02
"""
_FLAGS = b"""receiver.body_bytes_max=32MiB
prices.overrides={"A10": 0.9}
cluster.time_zone=Asia/Shanghai
recommender.opt_out_namespaces=a,b
risk.preset=low"""
_BOOK = b"""[[price]]
card_model = "NVIDIA A10"
per_card_hour = 0.79
currency = "USD"
source = "contract"
date = 2026-01-12
node_labels = { zone = "a" }
[[rate]]
currency = "EUR"
into = "USD"
rate = 1.1
date = 2026-01-12
source = "bank"
[[budget]]
team = "search"
per_month = 1000
"""
_PRICES = b"""card_model,price_per_card_hour,currency,source,date,node_labels
NVIDIA A10,0.79,USD,contract,2026-01-12,zone=a;rack=b
'=any,1e3,EUR,"a, b",2026-01-12,
"""
_PAIRS = b"""victim,aggressor,speed_ratio,victim_duty_cycle_ratio,aggressor_framebuffer_bytes
resnet,bert,0.8,0.5,1e9
"""
_CATALOGUE = (files("fleet") / "card_models.toml").read_bytes()
_RIGHTS = b"""[[right]]
person = "mei"
role = "operator"
clusters = ["c1"]
[[right]]
token = "ci"
token_sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
role = "viewer"
expires = 2027-01-31T00:00:00Z
"""
_TOKENS = b"# senders\nsha256:%s edge-1\n0123456789abcdef0123 edge-2\n" % (b"0" * 64)
_BACKUP = json.dumps(
    {
        "holds": "gputide-backup", "schema_version": 1, "created_at": "2026-01-12T00:00:00Z", "clusters": ["c1"],
        "files": [["data/plans/a.json", 10, "0" * 64, 1, 384], ["warehouse/MANIFEST", 5, "1" * 64, 2, 420]],
    }
).encode()  # fmt: skip
_FINGERPRINT = b'{"cards": "ab", "workloads": {"team/Deployment/web": ["1", "2", "3"]}}'


def _settings(path: Path) -> object:
    return load_settings(path, {}, {})


def _flags(data: bytes) -> object:
    """The same texts as flags and as environment, one `name=value` a line."""
    pairs = dict(line.partition("=")[::2] for line in text_of(data).split("\n"))
    return load_settings(None, {name: value for name, value in pairs.items() if name}, {"GPUTIDE_X": "y"})


def _outcome(data: bytes) -> object:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return outcome_of(content, name="outcome") if isinstance(content, dict) else None


def an_outcome() -> bytes:
    """An outcome, as `verify` keeps it."""
    moment, saving = datetime(2026, 1, 12, tzinfo=UTC), Saving(amortised=Decimal("1234.56"), marginal=None)
    outcome = Outcome(
        plan_id="p", measured_at=moment, since=moment, until=moment + timedelta(days=7), is_final=True,
        promised_cards_freed=2, realised_cards_freed=1, promised_saving_per_week=saving,
        realised_saving_per_week=saving, promised_violation_ratio=0.01,
        control_violation_ratio=0.0, coverage_ratio=0.99, given_back=0, harm_budget_ratio=0.01,
        workloads=(
            WorkloadOutcome(
                workload=WorkloadId("team/Deployment/web"), predicted_violation_ratio=0.01, violation_ratio=0.02,
                active_steps=10, cause="contention",
            ),
        ),
    )  # fmt: skip
    return json.dumps(outcome_document(outcome)).encode()


def _backup(data: bytes) -> object:
    """A list whose digest fits: whoever may write a back-up may write that too."""
    path = scratch_file(LIST_NAME)
    try:
        body = json.loads(data)
        body = {key: value for key, value in body.items() if key != "sha256"}
        canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
        path.write_text(json.dumps({**body, "sha256": hashlib.sha256(canonical).hexdigest()}))
    except (ValueError, AttributeError, RecursionError):
        path.write_bytes(data)
    return read_list(path.parent)


def _senders(path: Path) -> object:
    return Senders({}, tokens_file=path, takes_certificates=False, now_seconds=lambda: 0.0).names


class _SignedClaims:
    """ID tokens with any claims, signed by the provider: what is behind the signature is read too."""

    def __init__(self) -> None:
        self._key = ECKey.generate_key("P-256", {"kid": "one"})
        issuer = "https://sso.example.com"
        self._sign_in = OidcSignIn(
            Provider(
                issuer=issuer, client_id="gputide", client_secret=None, redirect_url="https://g.example/signed-in",
                scopes=("openid",), name_claim="preferred_username", groups_claim="groups",
            ),
            clock=lambda: 0.0,
        )  # fmt: skip
        document = {"issuer": issuer, "jwks_uri": f"{issuer}/keys", "id_token_signing_alg_values_supported": ["ES256"]}
        # What the provider would have answered: no case may ask the network.
        self._sign_in._document = (0.0, document)
        self._sign_in._keys = (0.0, KeySet([self._key]))
        now = int(time.time())
        self.claims = {
            "iss": issuer, "aud": ["gputide"], "sub": "u-1", "exp": now + 86_400_000, "iat": now, "nonce": "n",
            "preferred_username": "mei", "groups": ["gpu", "ops"], "azp": "gputide",
        }  # fmt: skip

    def of_claims(self, data: bytes) -> object:
        try:
            token = jwt.encode({"alg": "ES256", "kid": "one"}, json.loads(data), self._key)
        except (ValueError, TypeError, RecursionError, AttributeError):
            return None
        return self.of_token(token.encode())

    def of_token(self, data: bytes) -> object:
        return self._sign_in._identity(self._sign_in._checked(text_of(data), "n"))

    def token(self) -> bytes:
        return jwt.encode({"alg": "ES256", "kid": "one"}, self.claims, self._key).encode()


def _trace_folder() -> tuple[Path, dict[str, bytes]]:
    folder = scratch_file("trace.kept").parent / "trace"
    TraceFiles().write(folder)
    return folder, {path.name: path.read_bytes() for path in folder.iterdir()}


def _trace(name: str, folder: Path, whole: dict[str, bytes]) -> Parser:
    def read(data: bytes) -> object:
        for other, content in whole.items():
            (folder / other).write_bytes(data if other == name else content)
        trace = open_trace(folder)
        return list(trace.usage_windows(trace.since, trace.until, 10))

    return Parser(name=f"trace-{name.removesuffix('.parquet')}", seeds=(whole[name],), read=read, cost=60)


def _bill(path: Path) -> object:
    return import_files([path], NAMES)


def _parquet_bill() -> bytes:
    sink = pa.BufferOutputStream()
    strings = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(ROW, pa.string()))
    pq.write_table(pyarrow.csv.read_csv(pa.BufferReader(bill_bytes([{}])), convert_options=strings), sink)
    return bytes(sink.getvalue().to_pybytes())


def _kept_bill() -> bytes:
    path = scratch_file("bill.parquet")
    write_bill(path, import_files([a_bill(scratch_file("bill.csv"), {})], NAMES).parts)
    return path.read_bytes()


def file_parsers() -> tuple[Parser, ...]:
    """In the order of the rooms that read them."""
    signed = _SignedClaims()
    folder, whole = _trace_folder()
    plan: Any = plan_to_json(seal_plan(a_plan()))
    return (
        Parser(name="settings-file", seeds=(_SETTINGS,), read=of_file(_settings, "settings.toml"), cost=20),
        Parser(name="settings-flags", seeds=(_FLAGS,), read=_flags, cost=20),
        Parser(name="card-models", seeds=(_CATALOGUE,), read=lambda data: parse_catalogue(text_of(data)), cost=60),
        Parser(name="price-book", seeds=(_BOOK,), read=lambda data: parse_price_book(text_of(data), name="b"), cost=4),
        Parser(name="price-csv", seeds=(_PRICES,), read=lambda data: parse_price_csv(
            text_of(data), name="p.csv", today=date(2026, 1, 12), currency="USD"), cost=2),
        Parser(name="measured-pairs", seeds=(_PAIRS,), read=of_file(read_measured_pairs, "pairs.csv"), cost=2),
        Parser(name="bill", seeds=(bill_bytes([{}, {"x_Line": "b"}]),), read=of_file(_bill, "bill.csv"), cost=20),
        Parser(name="bill-parquet", seeds=(_parquet_bill(),), read=of_file(_bill, "bill.parquet"), cost=60),
        Parser(name="bill-map", seeds=(b"node,ResourceId\nn1,i-0abc\n",), read=of_file(
            lambda path: read_map(path, {NodeName("c", "n1")}), "map.csv"), cost=2),
        Parser(name="kept-bill", seeds=(_kept_bill(),), read=of_file(read_bill, "bill.parquet"), cost=60),
        Parser(name="rights", seeds=(_RIGHTS,), read=of_file(Roster, "rights.toml"), cost=4),
        Parser(name="sender-tokens", seeds=(_TOKENS,), read=of_file(_senders, "tokens"), cost=2),
        Parser(name="plan", seeds=(plan,), read=plan_from_json, cost=8),
        Parser(name="outcome", seeds=(an_outcome(),), read=_outcome, cost=2),
        Parser(name="backup-list", seeds=(_BACKUP,), read=_backup, cost=2),
        Parser(name="fingerprint", seeds=(_FINGERPRINT,), read=lambda data: fingerprint_from_json(data, name="f")),
        Parser(name="id-token", seeds=(signed.token(),), read=signed.of_token, cost=10),
        Parser(name="id-token-claims", seeds=(json.dumps(signed.claims).encode(),), read=signed.of_claims, cost=20),
        *(_trace(name, folder, whole) for name in sorted(whole)),
    )  # fmt: skip
