"""Requests with LoRA adapters beside requests without: each has the tokens that PEFT, or a merged model, has for it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bare_adapter
import lora_folders
import pytest
import torch
from engine_runs import assert_at_rest, engine, greedy, run_all, spec
from lora_folders import KINDS
from peft import LoraConfig
from ranked_engines import ranked
from safetensors.torch import load_file, save_file

from pagewire.core.errors import InvalidRequest
from pagewire.core.messages import Role
from pagewire.core.sampling import SamplingParams
from pagewire.engine import LLM
from pagewire.engine.adapter_folder import AdapterFolder
from pagewire.engine.config import EngineConfig
from pagewire.engine.in_place import Completion
from pagewire.kernels.torch_backend import TorchBackend

TinyModel = Callable[[str], Path]
Adapters = dict[str, Path]

NUM_TOKENS = 12
SMALL: dict[str, Any] = {"dtype": "float32", "kv_memory_bytes": 4 << 20, "max_model_len": 256}
NAMES = ("", *KINDS)


@pytest.fixture(scope="module")
def adapters(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Adapters]:
    """Return the folders of an adapter of each kind for a tiny model, by name."""
    built: dict[str, Adapters] = {}

    def folders(model: str) -> Adapters:
        if model not in built:
            home = tmp_path_factory.mktemp(f"adapters-{model}")
            built[model] = {kind: lora_folders.build(tiny(model), home / kind, kind) for kind in KINDS}
        return built[model]

    return folders


def drawn_prompts(lengths: tuple[int, ...] = (1, 16, 33, 100)) -> list[list[int]]:
    chance = random.Random(0)
    return [[chance.randrange(256) for _ in range(length)] for length in lengths]


def tokens_of(answers: list[Completion]) -> list[tuple[int, ...]]:
    return [answer.token_ids for answer in answers]


@pytest.mark.parametrize("name", ["llama", "llama_odd_heads", "llama3_rope", "mistral", "qwen2", "qwen3"])
def test_adapters_side_by_side_answer_as_peft_does(
    tiny: TinyModel, adapters: Callable[[str], Adapters], name: str
) -> None:
    """In chunks, in batches that change, and again with what is cached: nobody takes another's blocks."""
    model, folders, prompts = tiny(name), adapters(name), drawn_prompts()
    asked = [(prompt, adapter) for prompt in prompts for adapter in NAMES]
    expected = {adapter: lora_folders.answers(model, folders.get(adapter), prompts, NUM_TOKENS) for adapter in NAMES}
    wanted = [expected[adapter][prompts.index(prompt)] for prompt, adapter in asked]
    assert len({expected[adapter][3] for adapter in NAMES}) == len(NAMES), "an adapter changes nothing"
    with LLM(model, **SMALL, adapters=folders, max_num_seqs=5, chunk_size=20, max_num_batched_tokens=64) as llm:
        for _ in range(2):
            answers = llm.generate([p for p, _ in asked], greedy(NUM_TOKENS), adapter=[each for _, each in asked])
            assert tokens_of(answers) == wanted
        assert [answer.cached_tokens for answer in answers] == [(len(prompt) - 1) // 16 * 16 for prompt, _ in asked]
        assert_at_rest(llm._loaded().engine.loop)


@pytest.fixture
def both(tiny: TinyModel, adapters: Callable[[str], Adapters], tmp_path: Path) -> Iterator[tuple[LLM, LLM]]:
    """An engine with an adapter, and one whose model has it merged."""
    folder = adapters("llama")["all"]
    merged = lora_folders.merged(tiny("llama"), folder, tmp_path / "merged")
    with LLM(tiny("llama"), **SMALL, adapters={"all": folder}) as adapted, LLM(merged, **SMALL) as whole:
        yield adapted, whole


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_tokens=NUM_TOKENS, n=3, temperature=0.9, seed=4, ignore_eos=True),
        SamplingParams(max_tokens=NUM_TOKENS, n=2, beam_width=4, use_beam_search=True, temperature=0.0),
        SamplingParams(max_tokens=NUM_TOKENS, temperature=0.7, top_p=0.9, seed=5, repetition_penalty=1.3),
        SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, prompt_logprobs=2, logprobs=2),
    ],
)
def test_forks_beams_and_scores_are_those_of_the_merged_model(both: tuple[LLM, LLM], sampling: SamplingParams) -> None:
    prompts = drawn_prompts()
    adapted, whole = (
        llm.generate(prompts, sampling, adapter=name) for llm, name in zip(both, ("all", ""), strict=True)
    )
    for ours, theirs in zip(adapted, whole, strict=True):
        assert [each.token_ids for each in ours.outputs] == [each.token_ids for each in theirs.outputs]
        for one, other in zip(
            (*ours.prompt_logprobs, *ours.logprobs), (*theirs.prompt_logprobs, *theirs.logprobs), strict=True
        ):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert one.top_tokens == other.top_tokens


@pytest.mark.parametrize("name", ["llama", "llama_odd_heads"])
def test_two_ranks_with_adapters_say_what_one_says(
    tiny: TinyModel, adapters: Callable[[str], Adapters], name: str
) -> None:
    named, prompts = tuple(f"{kind}={path}" for kind, path in adapters(name).items()), drawn_prompts()
    asked = [(prompt, adapter) for prompt in prompts for adapter in NAMES]
    specs = [
        spec(str(number), prompt, greedy(NUM_TOKENS), adapter=adapter) for number, (prompt, adapter) in enumerate(asked)
    ]
    settings: dict[str, Any] = {"adapters": named, "max_num_seqs": 5, "chunk_size": 20, "max_num_batched_tokens": 64}
    expected = run_all(engine(tiny(name), **settings).loop, specs).tokens
    with ranked(tiny(name), **settings) as two:
        assert run_all(two.loop, specs).tokens == expected


def refused(model: Path, *texts: str, match: str, error: type[Exception] = ValueError, **settings: Any) -> None:
    with pytest.raises(error, match=match):
        engine(model, adapters=texts, **settings)


def changed(folder: Path, target: Path, **config: Any) -> Path:
    """Copy an adapter with other entries in its config."""
    target.mkdir()
    (target / "adapter_model.safetensors").write_bytes((folder / "adapter_model.safetensors").read_bytes())
    written = json.loads((folder / "adapter_config.json").read_text())
    (target / "adapter_config.json").write_text(json.dumps({**written, **config}))
    return target


def test_texts_that_name_no_adapter_are_refused(tiny: TinyModel, adapters: Callable[[str], Adapters]) -> None:
    model, folder = tiny("llama"), adapters("llama")["all"]
    for text in ("a", "=x", "a=", "a b=x", "a,b=x", f"{'a' * 200}=x", ""):
        refused(model, text, match="an adapter is NAME=FOLDER")
    refused(model, f"a={folder}", f"a={folder}", match="two adapters are called a")
    refused(model, f"{model.resolve().name}={folder}", match="has the name of the model")
    refused(model, f"a={model}", match=r"adapter a: .* has no adapter_config\.json", error=FileNotFoundError)
    many = [f"{'n' * 100}{number}={folder}" for number in range(70)]
    refused(model, *many, match="names and digests of 70 adapters are 9509 characters; 8192 may be")
    with pytest.raises(ValueError, match="adapters is a list of NAME=FOLDER"):
        engine(model, adapters=f"a={folder}")


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3' is not supported"),
        ({"use_dora": True}, "use_dora is not supported"),
        ({"bias": "lora_only"}, "bias 'lora_only' is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is not supported"),
        ({"lora_bias": True}, "lora_bias is not supported"),
        ({"init_lora_weights": "pissa_niter_16"}, "'pissa_niter_16' changes the model's own weights"),
        ({"init_lora_weights": "lora_ga"}, "'lora_ga' changes the model's own weights"),
        ({"kasa_config": {"x": 1}}, "kasa_config is not supported"),
        ({"lora_alpha": "much"}, "lora_alpha is not a number: 'much'"),
        ({"alpha_pattern": {"up_proj": None}}, "up_proj is not a number: None"),
        ({"alpha_pattern": [1]}, "alpha_pattern is no object"),
        ({"alpha_pattern": {"(": 1}}, "alpha_pattern holds no regular expression"),
    ],
)
def test_what_is_more_than_lora_is_refused_by_name(
    tiny: TinyModel, adapters: Callable[[str], Adapters], tmp_path: Path, config: dict[str, Any], match: str
) -> None:
    folder = changed(adapters("llama")["all"], tmp_path / "changed", **config)
    refused(tiny("llama"), f"a={folder}", match=f"adapter a: .*{match}")


def test_tensors_that_do_not_fit_are_refused_by_name(
    tiny: TinyModel, adapters: Callable[[str], Adapters], tmp_path: Path
) -> None:
    folder = changed(adapters("llama")["all"], tmp_path / "changed")
    file = folder / "adapter_model.safetensors"
    whole = load_file(file)
    name = "base_model.model.model.layers.2.mlp.up_proj.lora_A.weight"
    for tensors, match in (
        (
            {key: value for key, value in whole.items() if key != name},
            r"layers\.2\.mlp\.up_proj has A and B of shapes None",
        ),
        (
            {**whole, name: whole[name][:, :7].contiguous()},
            r"shapes \(8, 7\) and \(96, 8\); \(r, 64\) and \(96, r\) fit",
        ),
        (
            {**whole, name.replace("layers.2", "layers.3"): whole[name].clone()},
            r"1 tensors add to no linear .* 3 layers: .*layers\.3",
        ),
        ({**whole, "base_model.model.lm_head.lora_A.weight": whole[name].clone()}, "lm_head"),
        ({**whole, name: whole[name] * torch.inf}, r"layers\.2\.mlp\.up_proj holds what is no finite number in torch"),
        ({**whole, name: whole[name].int()}, r"layers\.2\.mlp\.up_proj holds what is no finite number"),
        ({}, "adapter a has no tensors"),
    ):
        save_file(tensors, file)
        refused(tiny("llama"), f"a={folder}", match=match)
    file.write_bytes(b"none")
    refused(tiny("llama"), f"a={folder}", match="is no safetensors file")


@pytest.mark.parametrize("weight_dtype", ["auto", "fp8", "int8"])
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_adapters_go_with_weights_and_kv_of_any_kind(
    tiny: TinyModel, tmp_path: Path, weight_dtype: str, kv_dtype: str
) -> None:
    """As on an engine that composes its layers of plain torch's ops."""
    folder = bare_adapter.write(tiny("llama"), tmp_path / "mine")
    asked = [
        spec(f"{name} {i}", prompt, greedy(NUM_TOKENS), adapter=name)
        for i, prompt in enumerate(drawn_prompts())
        for name in ("", "mine")
    ]
    found = []
    for backend in (None, TorchBackend()):
        loop = engine(
            tiny("llama"), backend=backend, weight_dtype=weight_dtype, kv_dtype=kv_dtype, adapters=[f"mine={folder}"]
        ).loop
        found.append(run_all(loop, asked).tokens)
    # In codes an input may round to the next one where sums are taken in another order.
    assert sum(found[0][name] != found[1][name] for name in found[0]) <= (weight_dtype == "int8")


def test_the_general_path_has_none(tiny: TinyModel, adapters: Callable[[str], Adapters]) -> None:
    refused(tiny("gemma"), f"a={adapters('llama')['all']}", match="adapters: none where the model runs through")


def test_an_adapter_that_is_not_there_is_refused(tiny: TinyModel, adapters: Callable[[str], Adapters]) -> None:
    with LLM(tiny("llama"), **SMALL, adapters=adapters("llama")) as llm:
        with pytest.raises(
            InvalidRequest, match="there is no adapter 'other'; those loaded are all, attention, patterns"
        ):
            llm.generate("x", adapter="other")
        with pytest.raises(InvalidRequest, match="2 adapters for 1 prompts"):
            llm.generate("x", adapter=["all", "all"])
        for wrong in (None, 3, ["all", 3]):
            with pytest.raises(InvalidRequest, match="adapter is a name or a list of names, not"):
                llm.generate(["x", "y"], adapter=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="adapters is a mapping of names to folders, not"):
        LLM(tiny("llama"), **SMALL, adapters=["a=/x"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'a=b' is none"):
        LLM(tiny("llama"), **SMALL, adapters={"a=b": "/x"})
    built = engine(tiny("llama"), adapters=[f"all={adapters('llama')['all']}"])
    with pytest.raises(InvalidRequest, match="there is no adapter 'other' here"):
        built.scheduler.add(spec("r", [1, 2, 3], greedy(1), adapter="other"))


def test_the_fingerprint_names_adapters_and_what_they_are(
    tiny: TinyModel, adapters: Callable[[str], Adapters], tmp_path: Path
) -> None:
    folders, model = adapters("llama"), tiny("llama")
    first, second, other = (
        engine(model, adapters=texts).ready.fingerprint
        for texts in (
            [f"a={folders['all']}", f"b={folders['attention']}"],
            [f"b={folders['attention']}", f"a={folders['all']}"],
            [f"a={changed(folders['all'], tmp_path / 'other', lora_alpha=17)}", f"b={folders['attention']}"],
        )
    )
    assert first == second
    assert first.adapter_names == ("a", "b")
    assert first.adapter_digest("a") == AdapterFolder.open(f"x={folders['all']}").digest()
    assert first.adapter_digest("") == ""
    assert other.diff(first).startswith("adapters: a=")
    assert engine(model).ready.fingerprint.adapters == ""


def test_scales_are_those_of_peft(adapters: Callable[[str], Adapters], tmp_path: Path) -> None:
    config = json.loads((adapters("llama")["all"] / "adapter_config.json").read_text())
    folder = changed(adapters("llama")["all"], tmp_path / "changed")
    (folder / "adapter_config.json").write_text(
        json.dumps({name: value for name, value in config.items() if name != "lora_alpha"})
    )
    bare = AdapterFolder.open(f"a={folder}")
    assert bare.scale("model.layers.0.mlp.up_proj", 4) == LoraConfig().lora_alpha / 4
    patterns = AdapterFolder.open(f"a={adapters('llama')['patterns']}")
    assert patterns.scale("model.layers.1.self_attn.o_proj", 4) == 3 / 4
    assert patterns.scale("model.layers.0.self_attn.o_proj", 4) == 8 / 4
    assert patterns.scale("model.layers.0.mlp.up_proj", 20) == 40 / 20
    assert AdapterFolder.open(f"a={adapters('llama')['attention']}").scale("q_proj", 3) == 6 / 3**0.5


def test_settings_survive_the_border_of_a_process(adapters: Callable[[str], Adapters]) -> None:
    config = EngineConfig(model="m", role=Role.DECODE, adapters=("a=/x", "b=/y"))
    assert EngineConfig.from_json(config.to_json()) == config
    assert config.adapter_names == ("a", "b")
