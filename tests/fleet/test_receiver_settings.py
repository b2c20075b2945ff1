"""Settings of the receiver that only make sense together."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.errors import Misconfigured
from fleet.settings.settings import load_settings


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"receiver.tls_key_file": "key"}, "tls_certificate_file and tls_key_file go together"),
        ({"receiver.client_ca_file": "ca"}, "client_ca_file needs tls_certificate_file"),
        ({"receiver.senders": '{"edge-1": {"cluster": "east"}}'}, "senders needs tokens_file or client_ca_file"),
        ({"receiver.pending_bytes_max": "20MiB"}, "pending_bytes_max=20971520 is below"),
        ({"receiver.senders": '{"a": {"clustre": "east"}}', "receiver.tokens_file": "t"}, r"senders\.a\.clustre"),
        ({"receiver.processes": "0"}, r"receiver\.processes"),
    ],
)  # fmt: skip
def test_settings_that_do_not_go_together_are_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(Misconfigured, match=words):
        load_settings(None, given, {})


def test_senders_are_a_table_of_the_settings_file(tmp_path: Path) -> None:
    path = tmp_path / "gputide.toml"
    path.write_text(
        '[receiver]\ntokens_file = "tokens"\n[receiver.senders.edge-1]\ncluster = "east"\nbody_bytes_max = "2MiB"\n'
        "[receiver.senders.edge-2]\nsamples_per_second = 1000\n"
    )
    senders = load_settings(path, {}, {}).receiver.senders
    assert (senders["edge-1"].cluster, senders["edge-1"].body_bytes_max) == ("east", 2 << 20)
    assert (senders["edge-2"].cluster, senders["edge-2"].samples_per_second) == (None, 1000)
