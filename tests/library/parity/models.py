"""torchvision's models, for tests/library/parity.

usage: models.py names
       models.py run MODEL FOLDER STEPS LEARNING_RATE

names: a line for each model: its name, parameters, tensors, and the SHA-256 of its sorted lines
"NAME SIZExSIZE" (num_batches_tracked left out), with 1000 classes.

run: FOLDER/list has the tensors that the other side wants, "KIND NAME SIZExSIZE"; FOLDER/images
holds batches of BATCH images as f32, FOLDER/shape "BATCHES BATCH SIDE CLASSES". Writes
FOLDER/weights (f32, in the order of the list), FOLDER/forward (log-probabilities of the first
batch in evaluation, computed in f64), FOLDER/narrow (the same in f32) and, with STEPS of SGD,
FOLDER/losses (mean of each batch, f64).
"""

import hashlib
import sys
from pathlib import Path

import numpy as np
import torch
import torchvision

MODELS = (
    "alexnet vgg11 vgg11_bn vgg16 vgg16_bn squeezenet1_1 resnet18 resnet34 resnet50 resnet101 "
    "resnet152 resnext50_32x4d densenet121 mobilenet_v2 googlenet"
).split()
MOMENTUM = 0.9
# Of what a residual block adds. A new block adds as much as it is given, and so 152 layers double
# rounding errors fifty times; trained ones add less (torchvision's zero_init_residual).
RESIDUAL_SCALE = 0.2


def build(name, classes):
    more = {"init_weights": True} if name == "googlenet" else {}
    return getattr(torchvision.models, name)(weights=None, num_classes=classes, **more)


def tensors(model):
    return {n: t for n, t in model.state_dict().items() if not n.endswith("num_batches_tracked")}


def line(name, tensor):
    return f"{name} {'x'.join(map(str, tensor.shape))}"


def names():
    for name in MODELS:
        with torch.device("meta"):
            model = build(name, 1000)
        lines = sorted(line(n, t) for n, t in tensors(model).items())
        parameters = sum(p.numel() for p in model.parameters())
        digest = hashlib.sha256("".join(f"{l}\n" for l in lines).encode()).hexdigest()
        print(name, parameters, len(lines), digest)


def compare(theirs, wanted):
    """Every tensor is on both sides, with the same sizes."""
    own = {line(n, t) for n, t in theirs.items()}
    if own != set(wanted):
        sys.exit(f"only torchvision: {sorted(own - set(wanted))}\nonly ours: {sorted(set(wanted) - own)}")


def damp(model):
    """The last norm of each residual block scales by less than 1."""
    for module in model.modules():
        if isinstance(module, torchvision.models.resnet.BasicBlock):
            torch.nn.init.constant_(module.bn2.weight, RESIDUAL_SCALE)
        if isinstance(module, torchvision.models.resnet.Bottleneck):
            torch.nn.init.constant_(module.bn3.weight, RESIDUAL_SCALE)
        if isinstance(module, torchvision.models.mobilenetv2.InvertedResidual) and module.use_res_connect:
            torch.nn.init.constant_(module.conv[-1].weight, RESIDUAL_SCALE)


def settle(model, images):
    """Running statistics become those of these images, so that evaluation is well scaled."""
    norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None
    model.train()
    with torch.no_grad():
        model(images)
    model.eval()


def descend(model, images, labels, steps, learning_rate):
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=MOMENTUM)
    losses = []
    for step in range(steps):
        at = step % len(images)
        optimizer.zero_grad()
        outputs = model(images[at])
        entropy = torch.nn.functional.cross_entropy
        if isinstance(outputs, torch.Tensor):
            loss = entropy(outputs, labels[at])
        else:
            heads = [outputs.aux_logits1, outputs.aux_logits2]
            loss = entropy(outputs.logits, labels[at]) + sum(0.3 * entropy(h, labels[at]) for h in heads)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def evaluated(model, images):
    with torch.no_grad():
        return torch.log_softmax(model(images).double(), 1).numpy()


def run(name, folder, steps, learning_rate):
    torch.manual_seed(1)
    torch.set_num_threads(1)
    batches, batch, side, classes = map(int, (folder / "shape").read_text().split())
    model = build(name, classes)
    damp(model)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    wanted = [l.split(" ", 1)[1] for l in (folder / "list").read_text().splitlines()]
    compare(tensors(model), wanted)
    flat = torch.from_numpy(np.fromfile(folder / "images", dtype=np.float32))
    images = flat.reshape(batches, batch, 3, side, side)
    settle(model, images[0])
    own = tensors(model)
    with open(folder / "weights", "wb") as out:
        for entry in wanted:
            out.write(own[entry.split(" ")[0]].contiguous().numpy().tobytes())
    evaluated(model, images[0]).tofile(folder / "narrow")
    evaluated(model.double(), images[0].double()).tofile(folder / "forward")
    model.float()
    labels = torch.arange(batches * batch).reshape(batches, batch) % classes
    np.array(descend(model, images, labels, steps, learning_rate), dtype=np.float64).tofile(folder / "losses")


if sys.argv[1:] == ["names"]:
    names()
else:
    run(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
