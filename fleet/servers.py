"""Servers and frameworks that run on cards: how each is recognised, what it is for, and how it takes framebuffer.

One table for all who ask: exporters and the scan recognise a server by what a pod's specification says, the analyzer
knows by it what a workload is for, and analyzer and recommender know which servers hide their need. A command is surer
than an image, which may be built upon, and an image surer than a label. What a tenant writes speaks for its own pod
alone. Standard library only: the node exporter's process loads this module.

Sources (repository:path): vllm-project/vllm:vllm/entrypoints, sgl-project/sglang:python/sglang/launch_server.py,
huggingface/text-generation-inference:launcher, triton-inference-server/server:docs, NVIDIA/TensorRT-LLM:docs
(trtllm-serve), InternLM/lmdeploy:lmdeploy/cli, ai-dynamo/dynamo:components, ggml-org/llama.cpp:tools/server,
llm-d/llm-d-inference-scheduler:docs and vllm-project/aibrix:docs (labels), kubeflow and JupyterHub images.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from types import MappingProxyType

WORDS_MAX = 512
"""Most words of a command that are looked at."""
_WORD_LENGTH_MAX = 16_384


class Use(StrEnum):
    """What a server or framework is for."""

    SERVING = "serving"
    TRAINING = "training"
    NOTEBOOK = "notebook"
    TRANSCODING = "transcoding"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One server or framework.

    Attributes:
        name: as grants record it.
        preallocates: it takes framebuffer ahead of need by default, so that what is used shows no need.
        programs: names of its programs, and the word after where a program has several uses (`vllm serve`).
        modules: beginnings of Python modules that start it (`python -m vllm.entrypoints…`).
        images: parts of an image's path without its registry and tag.
        prefixes: beginnings of the names of its metrics, by which its pods are known too.
        hosts: it runs engines of others, and what these take of framebuffer is theirs.
        replays_graphs: it launches by CUDA graphs by default, which pass what holds single launches back.
    """

    name: str
    use: Use = Use.SERVING
    preallocates: bool = False
    programs: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    hosts: bool = False
    replays_graphs: bool = False


SERVERS: tuple[Server, ...] = (
    # What is built upon others comes before them: of an image or command that fits several the first counts.
    Server(name="nim", preallocates=True, replays_graphs=True, images=("nim/",)),
    Server(
        name="vllm", preallocates=True, replays_graphs=True, programs=("vllm serve",),
        modules=("vllm.entrypoints", "dynamo.vllm"), images=("vllm", "ray-llm"),
        prefixes=("vllm:", "kserve_vllm:", "ray_vllm_"),
    ),
    Server(
        name="sglang", preallocates=True, replays_graphs=True, programs=("sglang serve",),
        modules=("sglang.launch_server", "dynamo.sglang"), images=("sglang",), prefixes=("sglang:",),
    ),
    Server(
        name="tgi", preallocates=True, replays_graphs=True, programs=("text-generation-launcher",),
        images=("text-generation-inference",), prefixes=("tgi_",),
    ),
    Server(
        name="tensorrt-llm", preallocates=True, replays_graphs=True, programs=("trtllm-serve",),
        modules=("dynamo.trtllm",), images=("tensorrt-llm/", "tensorrt-llm", "trtllm", "tensorrtllm"),
        prefixes=("trtllm_", "trtllm:", "nv_trt_llm_"),
    ),
    Server(
        name="lmdeploy", preallocates=True, replays_graphs=True, programs=("lmdeploy serve",), images=("lmdeploy",),
        prefixes=("lmdeploy:",),
    ),
    Server(
        name="triton", programs=("tritonserver",), images=("tritonserver",), prefixes=("nv_inference_",), hosts=True,
    ),
    # It takes all at its start too, but as much as its own settings say and no share of what it sees.
    Server(
        name="llama.cpp", replays_graphs=True, programs=("llama-server",), images=("llama.cpp", "llama-cpp"),
        prefixes=("llamacpp:",),
    ),
    # Workers run an engine of those above, which is known where its own metrics, command or image say so.
    Server(
        name="dynamo", preallocates=True, replays_graphs=True, images=("ai-dynamo/",),
        prefixes=("dynamo_component_",),
    ),
    Server(name="ray-serve", programs=("serve run",), prefixes=("ray_serve_",), hosts=True),
    Server(name="ollama", replays_graphs=True, programs=("ollama serve",), images=("ollama",)),
    Server(name="torchserve", programs=("torchserve",), images=("torchserve",)),
    Server(name="tei", programs=("text-embeddings-router",), images=("text-embeddings-inference",), prefixes=("te_",)),
    Server(name="diffusers"),
    Server(name="deepspeed", use=Use.TRAINING, programs=("deepspeed",)),
    Server(
        name="pytorch", use=Use.TRAINING, programs=("torchrun", "accelerate launch"), modules=("torch.distributed",)
    ),
    Server(name="horovod", use=Use.TRAINING, programs=("horovodrun",)),
    Server(name="megatron", use=Use.TRAINING),
    Server(name="jax", use=Use.TRAINING, preallocates=True),
    Server(name="tensorflow", use=Use.TRAINING, preallocates=True),
    Server(
        name="jupyter", use=Use.NOTEBOOK,
        programs=("jupyter", "jupyter-lab", "jupyter-notebook", "jupyterhub-singleuser", "start-notebook.sh"),
        modules=("jupyter", "notebook"), images=("jupyter/", "jupyter", "-notebook"),
    ),
    Server(name="jupyterlab", use=Use.NOTEBOOK),
    Server(name="vscode", use=Use.NOTEBOOK, programs=("code-server",), images=("code-server", "codeserver")),
    Server(name="rstudio", use=Use.NOTEBOOK, programs=("rserver",), images=("rstudio",)),
    Server(name="ffmpeg", use=Use.TRANSCODING, programs=("ffmpeg",)),
    Server(name="gstreamer", use=Use.TRANSCODING, programs=("gst-launch-1.0",)),
)  # fmt: skip

SERVER_LABEL = "gputide.io/server"
"""Label or annotation of a pod by which somebody says what runs in it, by a name of `SERVERS`."""
MODEL_LABEL = "gputide.io/model"
"""Label or annotation of a pod that says which model its server serves; exporters read it from a command, too.

A label holds no slash, so it is the name without its owner."""
_MODEL_FLAGS = frozenset({"--model", "--model-id", "--model-path"})
_MODEL_COMMANDS = frozenset({"serve", "api_server", "trtllm-serve"})
"""Words of a command behind which a model may stand without a flag."""
_MODEL_PATH = re.compile(r"(?:[\w./-]*/)?(?P<name>[A-Za-z0-9][\w.-]{0,95})/?", re.ASCII)
"""A model's name on a hub or a folder; an address, which may hold a password, is none."""
_ENGINE_LABELS = ("llm-d.ai/engine-type", "inference.networking.k8s.io/engine-type", "model.aibrix.ai/engine")
_ENGINES = MappingProxyType({"trtllm": "tensorrt-llm", "trtllm-serve": "tensorrt-llm", "llamacpp": "llama.cpp"})
"""What others call a server in their labels, where it is not its name."""
_BY_NAME: Mapping[str, Server] = MappingProxyType({server.name: server for server in SERVERS})
_PREFIXES = tuple(
    (spelling, server.name)
    for server in SERVERS
    for prefix in server.prefixes
    for spelling in {prefix: 0, prefix.replace(":", "_"): 0}
)
_BEFORE_PROGRAMS = frozenset({"--", "-c", "-lc", "-ec", "-g", "-s"})
"""Options of shells and init programs that a program's name may stand behind; behind others it is their value."""


def known_server(name: str | None) -> Server | None:
    """What is known of a server by the name that a grant records, in any case; None where there is none."""
    return None if name is None else _BY_NAME.get(name.lower())


def server_rank(name: str) -> int:
    """Place of a server among those that may run in one pod: engines come before what passes requests on to them."""
    return list(_BY_NAME).index(name) if name in _BY_NAME else len(_BY_NAME)


def preallocates(name: str | None) -> bool:
    """Whether a server takes framebuffer ahead of need; False for one that is not known."""
    server = known_server(name)
    return server is not None and server.preallocates


def replays_graphs(name: str | None) -> bool:
    """Whether a server launches by CUDA graphs by default; False for one that is not known."""
    server = known_server(name)
    return server is not None and server.replays_graphs


def hosts_engines(name: str | None) -> bool:
    """Whether a server runs engines of others, so that its name does not say how framebuffer is taken."""
    server = known_server(name)
    return server is not None and server.hosts


def server_of_metric(name: str) -> str | None:
    """Which server writes a metric, by the beginning of its name; None for a name of none."""
    return next((server for prefix, server in _PREFIXES if name.startswith(prefix)), None)


def server_of(image: str, words: Sequence[str], labels: Mapping[str, str]) -> str | None:
    """Recognise what runs in a container.

    Args:
        image: its image, as the pod's specification names it.
        words: its command and arguments; empty where the image's own are taken.
        labels: labels and `gputide.io/` annotations of its pod.

    Returns:
        A name of `SERVERS`: what somebody says by `SERVER_LABEL`, else by the command, the image or the labels of
        llm-d, Gateway API and AIBrix; None where nothing says it.
    """
    said = known_server(labels.get(SERVER_LABEL))
    if said is not None:
        return said.name
    spoken = tuple(_spoken(words))
    found = next((server for server in SERVERS if _is_started(server, spoken)), None)
    if found is None:
        path = _without_registry(image)
        found = next((server for server in SERVERS if _is_image_of(server, path)), None)
    if found is not None:
        return found.name
    engine = next((labels[label] for label in _ENGINE_LABELS if labels.get(label)), None)
    if engine is None:
        # Pods of llm-d's without the label are vLLM's.
        return "vllm" if labels.get("llm-d.ai/inferenceServing") == "true" else None
    named = known_server(_ENGINES.get(engine, engine))
    return None if named is None else named.name


def model_of(words: Sequence[str]) -> str | None:
    """Which model a container's server serves, by its command: the last part of its path.

    None where the command does not say it in plain words, or says several.
    """
    found = set()
    for word, behind in pairwise((*_spoken(words), "")):
        name, equals, value = word.partition("=")
        is_command = word.rpartition("/")[2] in _MODEL_COMMANDS and behind not in _MODEL_COMMANDS
        if name.replace("_", "-") in _MODEL_FLAGS:
            found.add(value if equals else behind)
        elif is_command and not behind.startswith("-"):
            found.add(behind)
    named = _MODEL_PATH.fullmatch(found.pop()) if len(found) == 1 else None
    return None if named is None else named["name"]


def _spoken(words: Sequence[str]) -> Iterator[str]:
    """The words of a command, those of a shell's script among them."""
    length, count = 0, 0
    for word in words[:WORDS_MAX]:
        length += len(word)
        if length > _WORD_LENGTH_MAX:
            return
        parts = [word]
        if any(character.isspace() for character in word):
            try:
                parts = shlex.split(word, comments=True)
            except ValueError:  # a quote that nobody closed
                parts = word.split()
        for part in parts:
            count += 1
            if count > WORDS_MAX:
                return
            yield part


def _is_started(server: Server, words: Sequence[str]) -> bool:
    for place, word in enumerate(words):
        before = words[place - 1] if place else ""
        if before == "-m" and any(word == name or word.startswith(f"{name}.") for name in server.modules):
            return True
        if before.startswith("-") and before not in _BEFORE_PROGRAMS:
            continue
        program = word.rpartition("/")[2]
        for name, _, use in (name.partition(" ") for name in server.programs):
            if program == name and (not use or words[place + 1 : place + 2] == (use,)):
                return True
    return False


def _is_image_of(server: Server, path: str) -> bool:
    """Whether an image is a server's: a part with a slash is looked for in the whole path, others in its last name."""
    last = path.rpartition("/")[2]
    return any(part in (path if "/" in part else last) for part in server.images)


def _without_registry(image: str) -> str:
    """An image's path, name and tag, without the registry's address and the digest; lower case."""
    first, slash, rest = image.lower().partition("@")[0].partition("/")
    return rest if slash and ("." in first or ":" in first or first == "localhost") else f"{first}{slash}{rest}"
