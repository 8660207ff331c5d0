"""Files of whoever makes models, clusters or recordings: their parsers, as `fuzz_parser` has them.

What is wrong with a file is a ValueError, which every command tells in one line; so is what keeps an engine from
starting. Parsers write the bytes where the file would lie.
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import gguf
import numpy as np
import torch
from fuzz_callers import CHAT, TEMPLATE, model
from fuzz_mutators import as_json, fields, first_of, json_lines, text
from fuzz_parser import ROOT, Mutate, Parser
from fuzz_scratch import reading, scratch
from fuzz_wire import SECRET
from safetensors.torch import save

from pagewire.cli import kv_size, models, slo_plan
from pagewire.core.block_hash import BlockHash
from pagewire.core.config import ConfigError, load
from pagewire.core.errors import InvalidRequest
from pagewire.core.units import parse_bytes
from pagewire.engine import block_file, gguf_folder, prefix_file, weights
from pagewire.engine.adapter_folder import AdapterFolder
from pagewire.engine.host_tier import HostTier
from pagewire.engine.model import lora
from pagewire.engine.model.families import native_architecture
from pagewire.engine.model.shard import Shard
from pagewire.engine.model_folder import ModelFolder
from pagewire.engine.moves import Moves
from pagewire.engine.parked import Parked
from pagewire.router import keys
from pagewire.router.config import RouterConfig
from pagewire.router.sampling_defaults import sampling_defaults
from pagewire.serving.pod_config import PodConfig
from pagewire.slo.costs.cost_model import CostModel, LinkLaw, SharingLaw, StepLaw, StepLine
from pagewire.slo.figures.experiment_files import read_experiment
from pagewire.slo.figures.objectives import parse_objectives
from pagewire.slo.figures.record import Record
from pagewire.slo.figures.record_files import row_of
from pagewire.slo.load.ask import AskFailed
from pagewire.slo.load.http_target import HttpTarget
from pagewire.slo.planning.device_files import read_kinds
from pagewire.slo.sweeps.configuration import Configuration, configurations
from pagewire.slo.sweeps.sweep_folder import SweepFolder
from pagewire.slo.workloads.formats.mooncake import read_mooncake
from pagewire.slo.workloads.formats.sharegpt import read_sharegpt
from pagewire.slo.workloads.formats.tables import read_azure, read_burstgpt
from pagewire.text.chat_template import ChatTemplate
from pagewire.text.tokenizer import Tokenizer

RECORDINGS = ROOT / "slo" / "workloads" / "recordings"
BAD_FILE = (ValueError, OSError)


def _recording(name: str, num_lines: int = 4) -> Callable[[], list[bytes]]:
    return lambda: [b"\n".join((RECORDINGS / name).read_bytes().splitlines()[:num_lines])]


def _begins(read: Callable[[Path], Any]) -> Callable[[Path], None]:
    """Return what reads a recording and what its first arrivals ask."""

    def parse(path: Path) -> None:
        for arrival in list(read(path).source())[:3]:
            assert arrival.turns

    return parse


SHAREGPT = [{"id": "a", "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]}]
SESSIONS = b"""{"timestamp": 1, "input_length": 600, "output_length": 4, "hash_ids": [1, 2], "session_id": "s"}
{"delay": 5, "input_length": 3, "output_length": 0, "hash_ids": [3], "session_id": "s"}
{"timestamp": 9, "input_length": 3, "output_length": 1, "text_input": "a b c"}"""

# ------------------------------------------------------------------------------------------------------- model folders

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 320, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512, "tie_word_embeddings": True, "eos_token_id": [2], "hidden_act": "silu",
    "attention_bias": False, "mlp_bias": False, "rope_theta": 10000.0,
}  # fmt: skip
SCALED = {
    **CONFIG, "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "sliding_window": 20,
    "max_window_layers": 1, "layer_types": ["sliding_attention", "full_attention"],
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32},
}  # fmt: skip
LLAMA3 = {
    **CONFIG, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
}  # fmt: skip


def _config(path: Path) -> None:
    folder = ModelFolder.open(path.parent)
    decoder = native_architecture(folder.hf_config).config
    decoder.kv_layout(16, "float32")


def _sized(path: Path) -> None:
    made = kv_size.sizing(path.parent, memory_bytes=1 << 30, block_size=16, dtype="float32", tensor_parallel=2)
    kv_size.figures(made, kv_size.service(path.parent), concurrency=4, context=100)


def _weights(path: Path) -> None:
    places = {"a": torch.empty(2, 3), "b": torch.empty(4, dtype=torch.bfloat16)}
    weights.load([path], places, [r"c\.\d+"])


def _stored() -> list[bytes]:
    return [save({"a": torch.zeros(2, 3), "b": torch.zeros(4), "c.1": torch.zeros(1)})]


ADAPTER: dict[str, Any] = {
    "peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", "use_rslora": True, "modules_to_save": None,
    "init_lora_weights": True, "alpha_pattern": {"up_proj": 3},
}  # fmt: skip


def _adapter_of(config: bytes, tensors: bytes) -> AdapterFolder:
    # In a folder of its own: transformers takes an adapter that lies beside a model for the model's.
    folder = scratch() / "adapter"
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_bytes(config)
    (folder / "adapter_model.safetensors").write_bytes(tensors)
    return AdapterFolder.open(f"a={folder}")


def _adapter_config(path: Path) -> None:
    _adapter_of(path.read_bytes(), b"").scale("model.layers.0.mlp.up_proj", 4)


def _adapter(path: Path) -> None:
    decoder = native_architecture(CONFIG).config
    lora.read(_adapter_of(_dump(ADAPTER), path.read_bytes()), decoder, torch.float32, torch.device("cpu"), Shard())


def _adapters() -> list[bytes]:
    module = "base_model.model.model.layers.1.mlp.up_proj.lora_"
    return [save({f"{module}A.weight": torch.zeros(2, 32), f"{module}B.weight": torch.zeros(48, 2)})]


def header(data: bytes, random: Random, words: Sequence[str]) -> bytes:
    """Change the header of a safetensors file, which is JSON behind its length."""
    if len(data) < 8 or random.random() < 0.2:
        return fields(data, random, words)
    length = int.from_bytes(data[:8], "little")
    said = as_json(data[8 : 8 + length], random, words)
    return struct.pack("<Q", len(said)) + said + data[8 + length :]


def _ggufs() -> list[bytes]:
    """Return GGUF files of architectures whose configs are made in different ways."""
    return [_gguf("llama", {}), _gguf("qwen2", {"attn_q.bias": (32,), "attn_k.bias": (16,), "attn_v.bias": (16,)})]


def _gguf(architecture: str, more: Mapping[str, tuple[int, ...]]) -> bytes:
    """Return a GGUF file of one layer, whose embedding is quantised; `more` are tensors that a Llama has not."""
    path = scratch() / "seed.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e4)
    writer.add_vocab_size(32)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<s>", "</s>", "ab", "bc", *map(chr, range(97, 125))])
    writer.add_token_types([3, 3, *[1] * 30])
    writer.add_token_merges(["a b", "b c"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template("{{ messages[0].content }}")
    packed = gguf.quantize(np.ones((32, 32), np.float32), gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("token_embd.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("output_norm.weight", np.ones(32, np.float32))
    square = ("attn_q", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    shapes: dict[str, tuple[int, ...]] = {f"{part}.weight": (32, 32) for part in square}
    shapes |= {
        "attn_k.weight": (16, 32),
        "attn_v.weight": (16, 32),
        "attn_norm.weight": (32,),
        "ffn_norm.weight": (32,),
    }
    for part, shape in {**shapes, **more}.items():
        writer.add_tensor(f"blk.0.{part}", np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def _converted(path: Path) -> None:
    gguf_folder.convert(path, path.parent / "converted", lambda _what, _done: None)


def _tokenizer(changed: str) -> Callable[[bytes], None]:
    """Return what opens a tokenizer's folder of which one file is another."""

    def parse(data: bytes) -> None:
        folder = scratch() / f"tokenizer of {changed}"
        folder.mkdir(exist_ok=True)
        for each in ("tokenizer.json", "tokenizer_config.json"):
            (folder / each).write_bytes(data if each == changed else (model() / each).read_bytes())
        tokenizer = Tokenizer(folder)
        try:
            tokenizer.decode_all(tokenizer.encode_now("hello")[:8])
            if tokenizer.has_chat_template:
                tokenizer.render_chat([{"role": "user", "content": "hello"}])
        finally:
            tokenizer.close()

    return parse


def _template(data: bytes) -> None:
    template = ChatTemplate(data.decode(errors="replace"), {"bos_token": "<s>", "eos_token": "</s>"})
    _ = template.options
    template.render(TALK, tools=CHAT["tools"])


TALK: list[Mapping[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "", "tool_calls": [
        {"id": "abcdefghi", "type": "function", "function": {"name": "now", "arguments": {"zone": "UTC"}}}]},
    {"role": "tool", "tool_call_id": "abcdefghi", "name": "now", "content": "12:00"},
]  # fmt: skip
TEMPLATES = tuple((ROOT / "tests" / "support" / "tool_templates").glob("*.jinja"))

# ------------------------------------------------------------------------------------------------------------- settings

ROUTER_TOML = b"""cluster-secret = "s"
model = ["/m"]
port = 0
redis_url = "redis://localhost"
max_body_bytes = "1MiB"
"""
POD_TOML = b"""model = "/m"
role = "decode"
cluster_secret = "s"
kv_memory = "1GiB"
transports = "grpc"
step_target_ms = 5
deterministic = true
"""
PREFIXES = b"""[terms]
text = "These are the terms"
salt = "terms-2"
tenant = "acme"
[support]
messages = [{ role = "system", content = "You answer" }]
[raw]
token_ids = [1, 2, 3]
"""
KEYS = f"""[tenants.acme]
keys = ["{keys.NewKey.of(bytes(36)).line}"]
max_concurrent = 8
tokens_per_s = 2000
cache_quota = 0.2
operator = true
[tenants.other]
salt = "x"
""".encode()
KINDS = b"""[[kind]]
name = "h100"
flops = 9.9e14
bandwidth = 3.35e12
memory = 8.0e10
price_per_hour = 3
link = 5e10
link_latency_s = 1e-5
[[kind]]
name = "measured"
costs = "costs.json"
memory = 1e10
price_per_hour = 1.5
link = 1e9
"""
COSTS = CostModel(
    prefill=StepLaw(lines=(StepLine(step_s=0.01, prefill_token_s=1e-4),), overhead_s=1e-3),
    decode=StepLaw(lines=(StepLine(step_s=0.01, decode_s=1e-3), StepLine(decode_pair_s=1e-6))),
    token_bytes=64, link=LinkLaw(latency_s=1e-4), sharing=SharingLaw(decode_beside_prefill=1.5), about={"a": 1},
)  # fmt: skip


def _set(cls: type) -> Callable[[Path], None]:
    def parse(path: Path) -> None:
        load(cls, file=path, environ={}, flags={}).show()

    return parse


def _kinds(path: Path) -> None:
    (path.parent / "costs.json").write_text(COSTS.to_json(), encoding="utf-8")
    read_kinds(path)


def _said(data: bytes) -> None:
    """Read texts as flags and settings have them."""
    said = data.decode(errors="replace")
    for read in (parse_bytes, parse_objectives, lambda each: configurations([], [each])):
        try:
            read(said)
        except ValueError:
            continue


# ------------------------------------------------------------------------------------------------------ runs and sweeps

RECORD = Record(
    arrival=0, turn=0, intended_s=0.5, sent_s=0.5, first_s=0.7, last_s=0.9, gaps_s=(0.1, 0.1), input_tokens=5,
    output_tokens=3, wanted_tokens=3, ttft_parts_s={"router": 0.1}, ended_s=0.9,
)  # fmt: skip
SUMMARY = {
    "window": {"from_s": 0.0, "until_s": 2.0}, "slo_ms": {"ttft": 500, "tpot": 50}, "labels": {"prefill": 1},
    "workload": {"rate": 2.0},
}  # fmt: skip
EXPERIMENT = {
    "title": "t", "command": "c",
    "runs": [{"labels": {"rate": 2.0, "decode": 1}, "summary": "run.json", "records": "run.jsonl", "name": "n"}],
}  # fmt: skip


def _row() -> bytes:
    return json.dumps(row_of(RECORD)).encode() + b"\n"


def _experiment(changed: str) -> Callable[[bytes], None]:
    """Return what reads a folder of runs of which one file is another."""

    def parse(data: bytes) -> None:
        folder = scratch() / f"experiment of {changed}"
        folder.mkdir(exist_ok=True)
        whole = {"experiment.json": _dump(EXPERIMENT), "run.json": _dump(SUMMARY), "run.jsonl": _row()}
        for name, there in whole.items():
            (folder / name).write_bytes(data if name == changed else there)
        for each in read_experiment([folder]).series():
            _ = each.name, each.num_pods

    return parse


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()


SWEPT = Configuration(settings={"pods": "1P:1D"})
PROBE = {"rate": 2.0, "repeat": 0, "attainment": {"good": 3, "total": 4}}


def _probe(data: bytes) -> None:
    folder = SweepFolder(scratch() / "sweep")
    place = folder.path / SWEPT.slug / "2.0-0"
    place.mkdir(parents=True, exist_ok=True)
    (place / "run.json").write_bytes(data)
    for probe in folder.probes(SWEPT):
        _ = probe.attained.share


def _asked(name: str) -> Callable[[bytes], None]:
    def parse(data: bytes) -> None:
        folder = SweepFolder(scratch() / f"sweep of {name}")
        place = folder.path / ("" if name == "sweep.json" else SWEPT.slug)
        place.mkdir(exist_ok=True)
        (place / name).write_bytes(data)
        folder.asked()
        folder.failure(SWEPT)

    return parse


@functools.cache
def _target() -> HttpTarget:
    return HttpTarget.__new__(HttpTarget)  # its connections are not what is read here


def _event(data: bytes) -> None:
    """Read an event of a server that may be anybody's."""
    from pagewire.slo.load.http_target import _object  # noqa: PLC0415

    _target()._part(0.0, _object(data))


EVENTS: tuple[dict[str, Any], ...] = (
    {"choices": [{"delta": {"content": "a", "reasoning_content": "b"}, "token_ids": [5]}], "usage": None},
    {"choices": [{"text": "a"}], "usage": {"prompt_tokens": 3, "completion_tokens": 2,
     "prompt_tokens_details": {"cached_tokens": 1}}},
    {"choices": [], "pagewire": {"timelines": [{"process": "d0", "stamps": [{"phase": "accepted", "at_s": 1.0}]}]}},
    {"error": {"message": "no"}},
)  # fmt: skip


def _file(
    name: str, file: str, read: Callable[[Path], Any], seeds: Callable[[], Sequence[bytes]], files: tuple[str, ...],
    mutate: Mutate, *, errors: tuple[type[Exception], ...] = BAD_FILE, cost: int = 2,
) -> Parser:  # fmt: skip
    """Return the parser of a file that may lie anywhere."""
    parse = reading(file, read)
    return Parser(name=name, parse=parse, seeds=seeds, errors=errors, files=files, mutate=mutate, cost=cost)


LAYOUTS = ("core/attention_heads.py", "core/kv_sizing.py", "core/kv_layout.py")
TABLES = ("slo/workloads/formats/tables.py", "slo/workloads/formats/fields.py")

# ---------------------------------------------------------------------------------------------------------- kept blocks

SLOTS, BLOCK_BYTES = 3, 64
HEAD, RECORDS = len(block_file.MAGIC) + 2 * block_file.DIGEST_BYTES, 64 * SLOTS  # and as many bytes of blocks


def _kept(data: bytes) -> None:
    """Take over what a file says, of which `data` is the header, the records and the blocks."""
    folder = scratch() / "kept"
    folder.mkdir(exist_ok=True)
    head, said, blocks = data[:HEAD], data[HEAD : HEAD + RECORDS], data[HEAD + RECORDS : HEAD + 2 * RECORDS]
    pages = (each.ljust(block_file.PAGE_BYTES, b"\0") for each in (head, said, blocks))
    (folder / "blocks-0.kv").write_bytes(b"".join(pages))
    file = block_file.BlockFile.take(folder, "o", "u", SLOTS, [BLOCK_BYTES])
    tier = HostTier(SLOTS, Moves(), file)
    tier.check()
    for parked in file.blocks():
        tier.first_damaged([parked.block_hash])
    put_blocks(file)
    file.close()


def put_blocks(file: block_file.BlockFile) -> None:
    """Seal a chain of two, and one by itself."""
    names = [BlockHash(bytes([i]) * 16) for i in range(1, 4)]
    for slot, (parent, depth) in enumerate(((None, 0), (names[0], 1), (None, 0))):
        file.part(0)[slot * BLOCK_BYTES : (slot + 1) * BLOCK_BYTES] = bytes([slot]) * BLOCK_BYTES
        file.seal(slot, Parked(slot, names[slot], parent, depth))


def _kept_blocks() -> list[bytes]:
    folder = scratch() / "sealed"
    file = block_file.BlockFile.take(folder, "o", "u", SLOTS, [BLOCK_BYTES])
    put_blocks(file)
    file.close()
    data, page = file.path.read_bytes(), block_file.PAGE_BYTES
    return [data[:HEAD] + data[page : page + RECORDS] + data[2 * page : 2 * page + RECORDS]]


PARSERS = (
    _file("Mooncake recording", "t.jsonl", _begins(read_mooncake), lambda: [*_recording("mooncake.jsonl")(), SESSIONS],
          ("slo/workloads/formats/mooncake.py", "slo/workloads/formats/fields.py"), json_lines),
    _file("Azure recording", "t.csv", _begins(read_azure), _recording("azure.csv"), TABLES, text),
    _file("BurstGPT recording", "t.csv", _begins(read_burstgpt), _recording("burstgpt.csv"), TABLES, text),
    _file("ShareGPT recording", "t.json", _begins(read_sharegpt), lambda: [_dump(SHAREGPT)],
          ("slo/workloads/formats/sharegpt.py",), as_json),
    _file("router's settings", "c.toml", _set(RouterConfig), lambda: [ROUTER_TOML], ("core/config.py", "core/units.py"),
          text, errors=(ConfigError,)),
    _file("pod's settings", "c.toml", _set(PodConfig), lambda: [POD_TOML], ("core/config.py", "serving/pod_config.py"),
          text, errors=(ConfigError,)),
    _file("pinned prefixes", "p.toml", lambda path: prefix_file.read(path, model()), lambda: [PREFIXES],
          ("engine/prefix_file.py",), text, cost=8),
    _file("key file", "k.toml", lambda path: keys.read(path.read_text(encoding="utf-8"), secret=SECRET),
          lambda: [KEYS], ("router/keys.py",), text),
    _file("kinds of devices", "d.toml", _kinds, lambda: [KINDS],
          ("slo/planning/device_files.py", "slo/planning/device_kind.py"), text),
    _file("cost model", "m.json", lambda path: CostModel.from_json(path.read_text(encoding="utf-8")),
          lambda: [COSTS.to_json().encode()], ("slo/costs/cost_model.py",), as_json),
    _file("config.json", "config.json", _config, lambda: [_dump(each) for each in (CONFIG, SCALED, LLAMA3)],
          ("engine/model_folder.py", "engine/model/decoder_config.py", "engine/model/rope_config.py",
           "engine/model/families.py"), as_json),
    _file("config.json of kv-size", "config.json", _sized, lambda: [_dump(CONFIG)], (*LAYOUTS, "cli/kv_size.py"),
          as_json),
    _file("config.json of slo plan", "config.json", slo_plan.read_model, lambda: [_dump(CONFIG)],
          ("slo/costs/roofline.py", "cli/slo_plan.py"), as_json),
    _file("generation_config.json", "generation_config.json", lambda path: sampling_defaults(path.parent),
          lambda: [_dump({"temperature": 0.6, "top_k": 5, "top_p": 0.9, "do_sample": True, "eos_token_id": 2})],
          ("router/sampling_defaults.py",), as_json),
    _file("weights", "model.safetensors", _weights, _stored, ("engine/weights.py",), header),
    _file("adapter_config.json", "a.json", _adapter_config, lambda: [_dump(ADAPTER)],
          ("engine/adapter_folder.py",), as_json),
    _file("adapter", "a.safetensors", _adapter, _adapters, ("engine/model/lora.py",), header),
    _file("GGUF", "m.gguf", _converted, _ggufs, ("engine/gguf_folder.py",), fields, cost=16),
    _file("index of weights", weights.INDEX_NAME, lambda path: weights.weight_files(path.parent),
          lambda: [_dump({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}})], ("engine/weights.py",),
          as_json),
    _file("manifest of a model", models.MANIFEST, lambda path: models.damage(path.parent),
          lambda: [_dump({"files": {"config.json": "00"}})], ("cli/models.py",), as_json, errors=()),
    Parser(name="kept blocks", parse=_kept, seeds=_kept_blocks, files=("engine/block_file.py", "engine/host_tier.py"),
           mutate=fields),
    Parser(name="tokenizer.json", parse=_tokenizer("tokenizer.json"),
           seeds=lambda: [(model() / "tokenizer.json").read_bytes()], errors=(*BAD_FILE, InvalidRequest),
           files=("text/tokenizer.py",), mutate=as_json, cost=16),
    Parser(name="tokenizer_config.json", parse=_tokenizer("tokenizer_config.json"),
           seeds=lambda: [(model() / "tokenizer_config.json").read_bytes()], errors=(*BAD_FILE, InvalidRequest),
           files=("text/tokenizer.py", "text/chat_template.py"), mutate=as_json, cost=16),
    Parser(name="chat template", parse=_template,
           seeds=lambda: [TEMPLATE.encode(), *(each.read_bytes() for each in TEMPLATES)],
           errors=(ValueError, InvalidRequest), files=("text/chat_template.py",), mutate=text, cost=16),
    Parser(name="texts of flags", parse=_said, seeds=lambda: [b"1.5GiB", b"ttft=500ms,tpot=5s", b"pods=1P:1D,2P:1D"],
           files=("core/units.py", "slo/figures/objectives.py", "slo/sweeps/configuration.py"), mutate=text),
    Parser(name="experiment.json", parse=_experiment("experiment.json"), seeds=lambda: [_dump(EXPERIMENT)],
           errors=BAD_FILE, files=("slo/figures/experiment_files.py", "slo/figures/experiment.py"), mutate=as_json,
           cost=4),
    Parser(name="summary of a run", parse=_experiment("run.json"), seeds=lambda: [_dump(SUMMARY)],
           errors=BAD_FILE, files=("slo/figures/experiment_files.py", "slo/figures/tally.py"), mutate=as_json, cost=4),
    Parser(name="records of a run", parse=_experiment("run.jsonl"), seeds=lambda: [_row() + _row()],
           errors=BAD_FILE, files=("slo/figures/record_files.py", "slo/figures/record.py"), mutate=json_lines, cost=4),
    Parser(name="probe of a sweep", parse=_probe, seeds=lambda: [_dump(PROBE)], errors=BAD_FILE,
           files=("slo/sweeps/sweep_folder.py",), mutate=as_json, cost=2),
    Parser(name="settings of a sweep", parse=_asked("sweep.json"), seeds=lambda: [_dump({"asked": {"rate": 1}})],
           errors=BAD_FILE, files=("slo/sweeps/sweep_folder.py",), mutate=as_json, cost=2),
    Parser(name="failure in a sweep", parse=_asked("failed.json"), seeds=lambda: [_dump({"error": "x"})],
           errors=BAD_FILE, files=("slo/sweeps/sweep_folder.py",), mutate=as_json, cost=2),
    Parser(name="events of a foreign server", parse=_event, seeds=lambda: [_dump(each) for each in EVENTS[:3]],
           errors=(AskFailed,), files=("slo/load/http_target.py",), mutate=first_of(as_json, text), cost=2),
)  # fmt: skip
