"""What torch reads in files of weights, for tests/library/checkpoint/elsewhere.rs: a line of JSON
for each file, its tensors by the model's names. Run with the files' paths."""

import json
import sys

import torch


def tensors_of(path):
    """The file's dictionary of tensors, and what stands before the model's names in it."""
    if path.endswith(".safetensors"):
        return safetensors(path), []
    # Ours: `args_ns.pth` holds an argparse.Namespace, which torch makes only where it may run code.
    whole = torch.load(path, map_location="cpu", weights_only=False)
    found = next((whole[key] for key in ("state_dict", "model") if key in whole), whole)
    return found, ["features.module.", "module."]


def safetensors(path):
    """What `safetensors.torch.load_model` puts into a model: tied tensors share their values."""
    with open(path, "rb") as file:
        body = bytearray(file.read())
    length = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + length])
    texts = header.pop("__metadata__", {})
    tensors = {}
    for name, about in header.items():
        start, end = about["data_offsets"]
        kind = {"F32": torch.float32, "I64": torch.int64}[about["dtype"]]
        values = torch.frombuffer(body[8 + length + start : 8 + length + end], dtype=kind)
        tensors[name] = values.reshape(about["shape"])
    tensors.update({name: tensors[kept] for name, kept in texts.items() if kept in tensors})
    return tensors


def named(name, prefixes):
    prefix = next((prefix for prefix in prefixes if name.startswith(prefix)), "")
    return name[len(prefix) :]


for path in sys.argv[1:]:
    tensors, prefixes = tensors_of(path)
    print(
        json.dumps(
            {
                named(name, prefixes): tensor.reshape(-1).tolist()
                for name, tensor in tensors.items()
                if tensor.dtype == torch.float32
            }
        )
    )
