"""A stand-in for vLLM and SGLang: it takes their arguments, memory by their formulas, and speaks their metrics and API.

It is put on the path under the programs' names, so that a command is started as a pod template has it, by a shell where
that says so. There is no card: `Card` says how much memory there is and how much others hold. The rest is as in
vllm-project/vllm:vllm/v1/worker/gpu_worker.py, vllm/v1/core/kv_cache_utils.py and
sgl-project/sglang:python/sglang/srt/model_executor/model_runner.py: what must be free at the start, how large the KV
cache becomes, and which of that ends the server.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

BLOCK_TOKENS = 16
BLOCK_BYTES = BLOCK_TOKENS * 131_072
"""Of a model of eight billion parameters: 32 layers, 8 heads of 128, two bytes."""
_CARD = "STAND_IN_CARD"
_LENGTH = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a server meets.

    Attributes:
        total_bytes: memory that it sees.
        held_bytes: what others hold of that.
        limit_bytes: what it may take; more is out of memory.
        weights_bytes: its model.
        others_bytes: what it takes beside model and KV cache, activations and graphs.
        outside_bytes: what vLLM does not count, such as CUDA's own and, before 0.21, graphs.
    """

    total_bytes: int
    held_bytes: int = 0
    limit_bytes: int
    weights_bytes: int
    others_bytes: int
    outside_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A server that runs: where it listens, its KV cache, and all that it took."""

    port: int
    pool_bytes: int
    taken_bytes: int


class NotStarted(Exception):
    """A server that ended, with the last line that it wrote."""


@contextmanager
def started(command: Sequence[str], card: Card, folder: Path) -> Iterator[Started]:
    """Start a container's command and let it run meanwhile.

    Raises:
        NotStarted: it ended before it listened.
    """
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    for name in ("vllm", "sglang"):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {name} "$@"\n')
        program.chmod(0o755)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", _CARD: json.dumps(asdict(card))}
    with subprocess.Popen(
        list(command), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            said = process.stdout.readline()
            if not said:
                raise NotStarted(process.stderr.read().strip().rpartition("\n")[2])
            yield Started(**json.loads(said))
        finally:
            # A shell may have started it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("serve")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.92)
    parser.add_argument("--kv-cache-memory-bytes", type=_readable)
    parser.add_argument("--num-gpu-blocks-override", type=int)
    parser.add_argument("--mem-fraction-static", type=float, default=0.88)
    parser.add_argument("--model-path")
    parser.add_argument("--max-model-len", type=int, default=_LENGTH)
    parser.add_argument("--dtype")
    parser.add_argument("--port", type=int, default=0)
    flags = [word.partition("=") for word in words]
    return parser.parse_args(
        [(name.replace("_", "-") if name.startswith("--") else name) + equals + value for name, equals, value in flags]
    )


def _readable(text: str) -> int:
    units = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
    return int(float(text[:-1]) * units[text[-1]]) if text[-1] in units else int(text)


def _vllm_blocks(given: argparse.Namespace, card: Card, free: int) -> int:
    wanted = math.ceil(card.total_bytes * given.gpu_memory_utilization)
    if free < wanted:
        sys.exit(f"ValueError: Free memory on device ({free}/{card.total_bytes}) on startup is less than desired GPU "
                 f"memory utilization ({given.gpu_memory_utilization}, {wanted})")  # fmt: skip
    pool = given.kv_cache_memory_bytes or wanted - card.weights_bytes - card.others_bytes
    if pool <= 0:
        sys.exit("ValueError: No available memory for the cache blocks.")
    blocks: int = given.num_gpu_blocks_override or pool // BLOCK_BYTES
    if blocks * BLOCK_TOKENS < given.max_model_len:
        sys.exit("ValueError: To serve at least one request with the model's max seq len, more KV cache is needed")
    return blocks


def _sglang_blocks(given: argparse.Namespace, card: Card, free: int) -> int:
    pool = free - card.weights_bytes - free * (1 - given.mem_fraction_static)
    if pool <= 0:
        sys.exit("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")
    return int(pool) // BLOCK_BYTES


def _metrics(given: argparse.Namespace, blocks: int, served: int) -> str:
    if given.program == "sglang":
        labels = f'{{engine_type="unified",model_name="{given.model_path}",pp_rank="0",tp_rank="0"}}'
        return (
            f"sglang:max_total_num_tokens{labels} {blocks * BLOCK_TOKENS}.0\n"
            f"sglang:kv_cache_memory_usage_gb{labels} {blocks * BLOCK_BYTES / 2**30}\n"
            f"sglang:token_usage{labels} 0.0\nsglang:num_requests_total{labels} {served}.0\n"
        )
    labels = f'{{engine="0",model_name="{given.model}"}}'
    return (
        f'vllm:cache_config_info{{block_size="{BLOCK_TOKENS}",cache_dtype="auto",engine="0",'
        f'gpu_memory_utilization="{given.gpu_memory_utilization}",'
        f'kv_cache_memory_bytes="{given.kv_cache_memory_bytes}",num_gpu_blocks="{blocks}",'
        f'num_gpu_blocks_override="{given.num_gpu_blocks_override}"}} 1.0\n'
        f"vllm:num_requests_running{labels} 0.0\nvllm:kv_cache_usage_perc{labels} 0.0\n"
        f'vllm:request_success_total{labels[:-1]},finished_reason="stop"}} {served}.0\n'
    )


def _serve(given: argparse.Namespace, card: Card) -> None:
    free = card.total_bytes - card.held_bytes
    blocks = (_sglang_blocks if given.program == "sglang" else _vllm_blocks)(given, card, free)
    pool = blocks * BLOCK_BYTES
    taken = card.weights_bytes + card.others_bytes + card.outside_bytes + pool
    if taken > min(free, card.limit_bytes):
        sys.exit(f"torch.OutOfMemoryError: CUDA out of memory: {taken} of {min(free, card.limit_bytes)}")
    served = 0

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            model = given.model or given.model_path
            texts = {
                "/health": "",
                "/metrics": _metrics(given, blocks, served),
                "/v1/models": json.dumps({"object": "list", "data": [{"id": model, "object": "model"}]}),
            }
            self._answer(texts.get(self.path))

        def do_POST(self) -> None:
            nonlocal served
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            served += 1
            choice = {"index": 0, "text": "yes", "finish_reason": "stop"}
            said = json.dumps({"object": "text_completion", "choices": [choice]})
            self._answer(said if self.path == "/v1/completions" else None)

        def _answer(self, text: str | None) -> None:
            self.send_response(404 if text is None else 200)
            self.end_headers()
            self.wfile.write((text or "").encode())

        def log_message(self, *args: object) -> None:
            del args

    with HTTPServer(("127.0.0.1", given.port), Handler) as server:
        print(json.dumps(asdict(Started(port=server.server_port, pool_bytes=pool, taken_bytes=taken))), flush=True)
        server.serve_forever()


if __name__ == "__main__":
    _serve(_arguments(sys.argv[1:]), Card(**json.loads(os.environ[_CARD])))
