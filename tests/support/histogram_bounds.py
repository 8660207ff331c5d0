"""The bounds of histograms that others named: sums over servers of several makes need the same ones."""

from __future__ import annotations

# vLLM's, v1/metrics/loggers.py.
TTFT_S = "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
TOKEN_S = "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80"
VLLM_PART_S = "0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"
PART_S = f"0.001 0.005 0.01 0.025 0.05 0.1 0.2 {VLLM_PART_S}"  # and ours below, where short waits are
# Its rising 1, 2, 5, which end at a model's longest context there, and here at the same for all models.
TOKENS = "1 2 5 10 20 50 100 200 500 1000 2000 5000 10000 20000 50000 100000 200000 500000 1000000"
ANSWERS = "1 2 5 10 20"
# OpenTelemetry's advice.
OTEL_DURATION_S = "0.01 0.02 0.04 0.08 0.16 0.32 0.64 1.28 2.56 5.12 10.24 20.48 40.96 81.92"
OTEL_TTFT_S = "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10"
OTEL_TPOT_S = "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5"
OTEL_TOKENS = "1 4 16 64 256 1024 4096 16384 65536 262144 1048576 4194304 16777216 67108864"
BUCKETS = {
    "vllm:time_to_first_token_seconds": TTFT_S,
    "vllm:inter_token_latency_seconds": TOKEN_S,
    "vllm:time_per_output_token_seconds": TOKEN_S,
    "vllm:request_time_per_output_token_seconds": TOKEN_S,
    "vllm:e2e_request_latency_seconds": PART_S,
    "vllm:request_queue_time_seconds": PART_S,
    "vllm:request_prefill_time_seconds": PART_S,
    "vllm:request_decode_time_seconds": PART_S,
    "vllm:request_inference_time_seconds": PART_S,
    "vllm:request_prompt_tokens": TOKENS,
    "vllm:request_generation_tokens": TOKENS,
    "vllm:request_max_num_generation_tokens": TOKENS,
    "vllm:request_params_max_tokens": TOKENS,
    "vllm:request_params_n": ANSWERS,
    "gen_ai_server_request_duration_seconds": OTEL_DURATION_S,
    "gen_ai_server_time_to_first_token_seconds": OTEL_TTFT_S,
    "gen_ai_server_time_per_output_token_seconds": OTEL_TPOT_S,
    "gen_ai_client_token_usage": OTEL_TOKENS,
}
