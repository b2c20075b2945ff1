"""A server is recognised as its makers start it, by command, image or label, and nothing else is taken for one."""

from __future__ import annotations

import pytest

from fleet.servers import SERVERS, WORDS_MAX, known_server, model_of, preallocates, server_of, server_of_metric

COMMANDS = (
    ("vllm serve meta-llama/Llama-3.1-8B --gpu-memory-utilization 0.9", "vllm"),
    ("python3 -m vllm.entrypoints.openai.api_server --model m", "vllm"),
    ("/usr/local/bin/vllm serve m", "vllm"),
    ("python -m dynamo.vllm --model m", "vllm"),
    ("python3 -m sglang.launch_server --model-path m --enable-metrics", "sglang"),
    ("text-generation-launcher --model-id m", "tgi"),
    ("tritonserver --model-repository=/models", "triton"),
    ("trtllm-serve serve m --port 8000", "tensorrt-llm"),
    ("lmdeploy serve api_server m", "lmdeploy"),
    ("llama-server -m /m.gguf --metrics", "llama.cpp"),
    ("torchrun --nproc-per-node 8 train.py", "pytorch"),
    ("python -m torch.distributed.run train.py", "pytorch"),
    ("jupyter lab --ip 0.0.0.0", "jupyter"),
    ("ffmpeg -i in.mp4 out.mp4", "ffmpeg"),
    ("tini -g -- start-notebook.sh", "jupyter"),
)
OTHERS = (
    "python train.py --log-file ffmpeg", "vllm bench throughput", "python -m dynamo.frontend", "sleep infinity",
    "serve vllm", "python -m vllmish.entrypoints", "python serve.py --backend vllm",
)  # fmt: skip
IMAGES = (
    ("vllm/vllm-openai:v0.11.0", "vllm"),
    ("registry.corp:5000/mirror/vllm/vllm-openai@sha256:0123", "vllm"),
    ("lmsysorg/sglang:v0.5.3", "sglang"),
    ("ghcr.io/huggingface/text-generation-inference:3.3.7", "tgi"),
    ("nvcr.io/nvidia/tritonserver:25.06-py3", "triton"),
    ("nvcr.io/nvidia/tritonserver:25.06-trtllm-python-py3", "tensorrt-llm"),
    ("nvcr.io/nvidia/tritonserver:25.06-vllm-python-py3", "vllm"),
    ("nvcr.io/nvidia/tensorrt-llm/release:1.0.0", "tensorrt-llm"),
    ("nvcr.io/nim/meta/llama-3.1-8b-instruct:1.8", "nim"),
    ("openmmlab/lmdeploy:v0.9", "lmdeploy"),
    ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.7.0", "vllm"),
    ("nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:0.7.0", "tensorrt-llm"),
    ("rayproject/ray-llm:2.49.0-py311-cu128", "vllm"),
    ("ghcr.io/ggml-org/llama.cpp:server-cuda", "llama.cpp"),
    ("quay.io/jupyter/pytorch-notebook:latest", "jupyter"),
    ("VLLM/VLLM-OPENAI", "vllm"),
)  # fmt: skip


@pytest.mark.parametrize(("command", "name"), COMMANDS)
def test_a_command_says_what_runs(command: str, name: str) -> None:
    assert server_of("registry/app:1", command.split(), {}) == name
    # A command is surer than the image that it is built upon.
    assert server_of("jupyter/base-notebook", command.split(), {}) == name


@pytest.mark.parametrize(("command", "name"), COMMANDS)
def test_a_shell_may_stand_around_it(command: str, name: str) -> None:
    assert server_of("app", ["sh", "-c", f"export A=1 && exec {command}"], {}) == name
    assert server_of("app", ["bash", "-lc", f"{command} 'a quote that nobody closes"], {}) == name


@pytest.mark.parametrize("command", OTHERS)
def test_a_name_that_only_occurs_is_no_server(command: str) -> None:
    assert server_of("registry/app:1", command.split(), {}) is None


@pytest.mark.parametrize(("image", "name"), IMAGES)
def test_an_image_says_what_runs_where_the_command_is_its_own(image: str, name: str) -> None:
    assert server_of(image, (), {}) == name


@pytest.mark.parametrize("image", ["vllm.corp.example/team/app:1", "localhost/app", "", "app@sha256:vllm"])
def test_a_registrys_address_and_a_digest_say_nothing(image: str) -> None:
    assert server_of(image, (), {}) is None


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        ({"llm-d.ai/inferenceServing": "true"}, "vllm"),
        ({"llm-d.ai/inferenceServing": "true", "llm-d.ai/engine-type": "sglang"}, "sglang"),
        ({"inference.networking.k8s.io/engine-type": "trtllm-serve"}, "tensorrt-llm"),
        ({"model.aibrix.ai/engine": "vllm"}, "vllm"),
        ({"model.aibrix.ai/engine": "of our own"}, None),
        ({"gputide.io/server": "SGLang"}, "sglang"),
        ({"gputide.io/server": "of our own"}, None),
    ],
)
def test_labels_say_what_runs(labels: dict[str, str], name: str | None) -> None:
    assert server_of("app", (), labels) == name


def test_what_somebody_says_goes_before_all_else() -> None:
    assert server_of("vllm/vllm-openai", ["vllm", "serve"], {"gputide.io/server": "sglang"}) == "sglang"


def test_a_hostile_command_is_not_read_to_its_end() -> None:
    assert server_of("app", ["x"] * WORDS_MAX + ["vllm", "serve"], {}) is None
    assert server_of("app", ["x " * 20_000, "vllm", "serve"], {}) is None


@pytest.mark.parametrize(
    ("command", "model"),
    [
        ("vllm serve meta-llama/Llama-3.1-8B --gpu-memory-utilization 0.9", "Llama-3.1-8B"),
        ("python3 -m vllm.entrypoints.openai.api_server --model=org/m", "m"),
        ("python3 -m sglang.launch_server --model_path /models/m/", "m"),
        ("text-generation-launcher --model-id org/m", "m"),
        ("lmdeploy serve api_server org/m --tp 2", "m"),
        ("trtllm-serve serve org/m", "m"),
        ("trtllm-serve org/m --port 8000", "m"),
        ("vllm serve --model org/m", "m"),
        ("vllm serve $MODEL", None),
        ("vllm serve", None),
        ("vllm serve && sleep 1", None),
        ("vllm serve ; sleep 1", None),
        ("vllm serve org/a & vllm serve org/b", None),
        ("text-generation-launcher --model-id https://user:TOKEN@host/m", None),
        ("text-generation-launcher --model-id host/m?token=TOKEN", None),
        ("tritonserver --model-repository=/models", None),
        (f"vllm serve {'m' * 300}", None),
    ],
)
def test_a_command_says_which_model_is_served(command: str, model: str | None) -> None:
    assert model_of(command.split()) == model
    assert model_of(["sh", "-c", f"exec {command}"]) == model


def test_metrics_are_known_by_their_beginning() -> None:
    assert server_of_metric("vllm:num_requests_running") == "vllm"
    assert server_of_metric("kserve_vllm:num_requests_running") == "vllm"
    assert server_of_metric("nv_trt_llm_request_metrics") == "tensorrt-llm"
    assert server_of_metric("dynamo_component_inflight_requests") == "dynamo"
    assert server_of_metric("ray_serve_replica_processing_queries") == "ray-serve"
    assert server_of_metric("nv_gpu_utilization") is None


def test_names_are_unique_and_known_in_any_case() -> None:
    assert len({server.name for server in SERVERS}) == len(SERVERS)
    assert known_server("VLLM") is known_server("vllm") is not None
    assert (preallocates("vLLM"), preallocates("triton"), preallocates(None), preallocates("?")) == (
        True, False, False, False,
    )  # fmt: skip
