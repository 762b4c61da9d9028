"""torchvision's part of tests/processes/weights.rs: makes the weights that a run begins with, and
says what torchvision makes of those that it ends with.

    weights.py make CLASSES FILE.pth
    weights.py compare CLASSES START.pth END.safetensors
    weights.py predict CLASSES END.safetensors PICTURE...
"""

import json
import sys

import numpy
import torch
from PIL import Image
from torchvision.models import resnet18

MEAN = torch.tensor([0.485, 0.456, 0.406]).reshape(3, 1, 1)
DEVIATION = torch.tensor([0.229, 0.224, 0.225]).reshape(3, 1, 1)
TYPES = {"F32": torch.float32, "I64": torch.int64}


def read(path):
    """A safetensors file: its header's length, the header, the values."""
    with open(path, "rb") as file:
        body = bytearray(file.read())
    length = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + length])
    tensors = {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        start, end = about["data_offsets"]
        values = torch.frombuffer(
            body[8 + length + start : 8 + length + end], dtype=TYPES[about["dtype"]]
        )
        tensors[name] = values.reshape(about["shape"])
    return tensors


def make(classes, path):
    torch.manual_seed(5)
    model = resnet18(num_classes=classes)
    # Statistics of some pictures: a model that has been trained has such.
    model.train()
    with torch.no_grad():
        for _ in range(4):
            model(torch.randn(8, 3, 32, 32))
    torch.save({"model": model.state_dict(), "epoch": 4}, path)


def compare(start, end):
    """Which layers the run left as they were."""
    before = torch.load(start, weights_only=True)["model"]
    after = read(end)
    same, others = [], []
    for layer in ["conv1", "bn1", "layer1", "layer2", "layer3", "layer4", "fc"]:
        names = [name for name in after if name.startswith(layer + ".")]
        names = [name for name in names if not name.endswith("num_batches_tracked")]
        equal = [torch.equal(before[name], after[name]) for name in names]
        (same if all(equal) else others).append(layer)
    print(f"the same: {' '.join(same)}; others: {' '.join(others)}")


def predict(classes, weights, pictures):
    model = resnet18(num_classes=classes)
    tensors = read(weights)
    assert set(tensors) == set(model.state_dict()), "the names are torchvision's, all of them"
    model.load_state_dict(tensors, strict=True)
    model.eval()
    for picture in pictures:
        levels = torch.from_numpy(numpy.array(Image.open(picture))).permute(2, 0, 1) / 255
        with torch.no_grad():
            logits = model(((levels - MEAN) / DEVIATION)[None])
        rows = torch.softmax(logits.double(), 1)[0].tolist()
        top = [{"class": at, "probability": value} for at, value in enumerate(rows)]
        print(json.dumps({"file": picture, "top": top}))


if __name__ == "__main__":
    what, classes, *paths = sys.argv[1:]
    if what == "make":
        make(int(classes), *paths)
    elif what == "compare":
        compare(*paths)
    else:
        predict(int(classes), paths[0], paths[1:])
