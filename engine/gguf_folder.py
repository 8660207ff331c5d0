"""Turns one GGUF file into an ordinary Hugging Face folder, so that everything else knows one format only.

Knows the transformers reader; knows nothing of where the file came from or where models are kept. Invariants: `out_dir`
appears whole or not at all; no size that the file declares is believed before its tensors bear it out; a file whose
tensors or rope the reader would pass over is refused.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from pagewire.engine.weights import few

# A dequantised Q4_1 value is scale x q + minimum, with fp16 scale and minimum: up to 15 significant bits, and more
# after the sum. bfloat16 holds 8 and float16 11, so only float32 on disk keeps what the file says.
DISK_DTYPE = torch.float32
MAX_CONTEXT = 1 << 24  # tokens, of which no weight has to tell
_WHOLE = frozenset(each for each in gguf.GGUFValueType if each.name.startswith(("INT", "UINT")))

Progress = Callable[[str, float], None]


def convert(gguf_path: Path, out_dir: Path, progress: Progress) -> None:
    """Write `out_dir` with safetensors, config, generation config, tokenizer and chat template from `gguf_path`.

    `progress(what, done)` is called with `done` rising from 0 to 1. An existing `out_dir` is replaced at the end.
    Raises ValueError where the file is no GGUF file, or none of a model that the reader knows, and OSError; `out_dir`
    is then as it was.
    """
    partial = out_dir.with_name(out_dir.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _write(gguf_path, partial, progress)
        shutil.rmtree(out_dir, ignore_errors=True)
        partial.rename(out_dir)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # the reader has no error of its own for what it cannot read
        what = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise ValueError(f"{gguf_path.name} cannot be read: {what}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    progress("done", 1.0)


def _write(gguf_path: Path, folder: Path, progress: Progress) -> None:
    source, name = str(gguf_path.parent), gguf_path.name
    progress("reading the header", 0.0)
    _check_sizes(gguf_path)
    progress("reading the tokenizer", 0.1)
    # One file holds everything about the tokenizer, the chat template included.
    AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(folder, save_jinja_files=False)
    progress("dequantising the weights", 0.3)
    # The reader draws its own progress bar on stderr, over whatever our caller draws there.
    with contextlib.redirect_stderr(io.StringIO()):
        model, found = AutoModelForCausalLM.from_pretrained(
            source, gguf_file=name, dtype=DISK_DTYPE, output_loading_info=True
        )
    if lacking := sorted(found["missing_keys"]):  # the reader would draw them
        raise ValueError(f"it has no tensor for {few(lacking)}")
    progress("writing the weights", 0.7)
    # `model.save_pretrained` refuses a model that came from a GGUF file. Parameters leave tied ones out.
    weights = {key: parameter.detach().contiguous() for key, parameter in model.named_parameters()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    progress("writing the configuration", 0.9)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    # The weights on disk are plain now; left in, the entry would make readers look for the GGUF file again.
    _strip(folder / "config.json", "quantization_config", "_name_or_path", "_model_name_or_path")
    _strip(folder / "tokenizer_config.json", "is_local", "local_files_only")


def _check_sizes(gguf_path: Path) -> None:
    """Raise ValueError unless the model that the header speaks of is as large as the file's tensors, and plain."""
    reader = gguf.GGUFReader(gguf_path)
    _check_rope(reader)
    tensors = reader.tensors
    there = sum(int(tensor.n_elements) for tensor in tensors)
    for name, field in reader.fields.items():
        # Before anything is made of it: a config alone may keep something for each layer.
        most = len(tensors) if name.endswith(".block_count") else there
        most = max(most, MAX_CONTEXT) if name.endswith("context_length") else most
        if field.types and field.types[0] in _WHOLE and (said := int(field.parts[field.data[0]][0])) > most:
            raise ValueError(f"it says {name} {said}, and has {len(tensors)} tensors of {there} weights")
    config = AutoConfig.from_pretrained(gguf_path.parent, gguf_file=gguf_path.name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    declared = sum(parameter.numel() for parameter in model.parameters())
    if declared != there:  # more of them would be left out, such as biases, or frequencies that scale rope
        raise ValueError(f"it speaks of {declared} weights and has {there}")


def _check_rope(reader: gguf.GGUFReader) -> None:
    """Raise ValueError where the header scales rope, which the reader of the weights does not hear."""
    fields = ((name.partition(".")[2], field) for name, field in reader.fields.items())
    said = {name: field.contents() for name, field in fields if name.startswith("rope.scal")}
    kind = said.get("rope.scaling.type", "linear")
    factor = said.get("rope.scaling.factor", said.get("rope.scale_linear", 1.0))
    if kind != "none" and (kind != "linear" or factor not in (0.0, 1.0)):  # 0 is 1 to llama.cpp
        raise ValueError(f"its rope is scaled ({kind} by {factor}), which is not supported")


def _strip(path: Path, *names: str) -> None:
    config = json.loads(path.read_text(encoding="utf-8"))
    for name in names:
        config.pop(name, None)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
