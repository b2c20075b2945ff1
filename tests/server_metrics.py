"""What inference servers write at `/metrics`, in their own formats, and what Prometheus makes of it.

Lines that say nothing of a model or a cache are left out. Sources: vllm-project/vllm:vllm/engine/metrics.py (V0) and
vllm/v1/metrics/loggers.py (V1), sgl-project/sglang:python/sglang/srt/metrics/collector.py,
huggingface/text-generation-inference:router, InternLM/lmdeploy:lmdeploy/metrics,
NVIDIA/TensorRT-LLM:tensorrt_llm/metrics/collector.py, triton-inference-server/tensorrtllm_backend:docs.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

VLLM_V0 = """\
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",calculate_kv_scales="False",cpu_offload_gb="0",\
enable_prefix_caching="True",gpu_memory_utilization="0.9",is_attention_free="False",num_cpu_blocks="2048",\
num_gpu_blocks="2805",num_gpu_blocks_override="None",sliding_window="None",swap_space_bytes="4294967296"} 1.0
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="meta-llama/Meta-Llama-3.1-8B-Instruct"} 3.0
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{model_name="meta-llama/Meta-Llama-3.1-8B-Instruct"} 0.25
"""
VLLM_V1 = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 3.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.25
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",calculate_kv_scales="False",cpu_offload_gb="0",\
enable_prefix_caching="True",engine="0",gpu_memory_utilization="0.92",is_attention_free="False",\
kv_cache_max_concurrency="5.48",kv_cache_memory_bytes="None",kv_cache_size_tokens="44880",\
mamba_block_size="None",mamba_cache_dtype="auto",num_cpu_blocks="None",num_gpu_blocks="2805",\
num_gpu_blocks_override="None",prefix_caching_hash_algo="sha256",sliding_window="None",swap_space="4"} 1.0
"""
VLLM_POOL_BYTES = 2805 * 16 * 131_072
SGLANG = """\
# TYPE sglang:max_total_num_tokens gauge
sglang:max_total_num_tokens{engine_type="unified",model_name="qwen",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 65536.0
# TYPE sglang:token_usage gauge
sglang:token_usage{engine_type="unified",model_name="qwen",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 0.25
# TYPE sglang:kv_cache_memory_usage_gb gauge
sglang:kv_cache_memory_usage_gb{engine_type="unified",model_name="qwen",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 8.0
# TYPE sglang:weight_memory_usage_gb gauge
sglang:weight_memory_usage_gb{engine_type="unified",model_name="qwen",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 9.5
"""
SGLANG_POOL_BYTES = 8 * 2**30
TGI = """\
# TYPE tgi_batch_max_total_tokens gauge
tgi_batch_max_total_tokens 40960
# TYPE tgi_batch_current_max_tokens gauge
tgi_batch_current_max_tokens 4096
"""
LMDEPLOY = """\
# TYPE lmdeploy:num_requests_running gauge
lmdeploy:num_requests_running{engine="0",model_name="internlm/internlm2_5-7b-chat"} 3.0
# TYPE lmdeploy:gpu_cache_usage_perc gauge
lmdeploy:gpu_cache_usage_perc{engine="0",model_name="internlm/internlm2_5-7b-chat"} 0.25
"""
TRTLLM_SERVE = """\
# TYPE trtllm_kv_cache_utilization gauge
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.25
# TYPE trtllm_kv_cache_max_blocks gauge
trtllm_kv_cache_max_blocks{engine_type="trtllm",model_name="meta-llama/Llama-3.1-8B-Instruct"} 1400
# TYPE trtllm_kv_cache_tokens_per_block gauge
trtllm_kv_cache_tokens_per_block{engine_type="trtllm",model_name="meta-llama/Llama-3.1-8B-Instruct"} 32
# TYPE trtllm_kv_cache_config_info gauge
trtllm_kv_cache_config_info{cache_dtype="auto",engine_type="trtllm",free_gpu_memory_fraction="0.9",\
model_name="meta-llama/Llama-3.1-8B-Instruct",page_size="32"} 1
"""
TRTLLM_FP8 = TRTLLM_SERVE.replace('"auto"', '"fp8"')
TRTLLM_POOL_BYTES = 1400 * 32 * 131_072
TRITON = """\
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="ensemble",version="1"} 120
nv_inference_request_success{model="tensorrt_llm",version="1"} 120
# TYPE nv_trt_llm_kv_cache_block_metrics gauge
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 1400
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 350
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="free",model="tensorrt_llm",version="1"} 1050
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm",version="1"} 32
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.25
"""


def scraped(text: str, pod: str, namespace: str = "team", **target: str) -> list[tuple[dict[str, str], float]]:
    """The series of one scrape of a pod, as Prometheus keeps them: a label of the target moves the pod's own aside.

    Args:
        text: what the pod wrote.
        pod: the pod that was scraped.
        namespace: its namespace.
        target: further labels of the target, such as `container`.
    """
    labels = {"namespace": namespace, "pod": pod, "job": "servers", "instance": "10.0.0.1:8000", **target}
    return [
        ({"__name__": sample.name, **_kept(sample.labels, labels), **labels}, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


def _kept(own: Mapping[str, str], target: Mapping[str, str]) -> dict[str, str]:
    return {f"exported_{name}" if name in target else name: text for name, text in own.items()}
