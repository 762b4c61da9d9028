"""The other side of `kintsugi bench step`: a step of the same model with PyTorch.

usage: step.py DEVICE MODEL PRECISION IMAGE_SIZE BATCH THREADS, with a python that has torch and
torchvision. DEVICE: "cpu" or "cuda". Says "ready", then for each line of standard input ("eager" or
"compiled") takes a step (forward, backward, SGD with momentum) and answers with the seconds that it took,
"nan" where that variant does not work here. Tensors lie channels_last; "bf16" is torch.autocast, "tf32"
is a card's. On a card pictures lie there already, and cuDNN tries which algorithms are fastest.
"""

import contextlib
import os
import sys
import time
import traceback

device, model_name, precision = sys.argv[1:4]
side, batch, threads = map(int, sys.argv[4:7])
os.environ["OMP_NUM_THREADS"] = str(threads)

import torch
import torchvision
from torch import nn
from torch.nn import functional

CLASSES = 1000
on_card = device == "cuda"


def norm_relu(channels):
    return [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]


def cnn11():
    """As `kintsugi model show cnn11`."""
    stem = (3, 1) if side <= 48 else (5, 2) if side <= 112 else (7, 4)
    layers, channels = [], 3
    for stage, widths in enumerate([[64], [128], [256, 256, 256], [384, 512, 512]]):
        for width in widths:
            kernel, stride = stem if stage == 0 else (3, 1)
            conv = nn.Conv2d(channels, width, kernel, stride, kernel // 2, bias=False)
            layers += [conv, *norm_relu(width)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    body = nn.Sequential(*layers, nn.Flatten())
    features = body(torch.zeros(2, 3, side, side)).shape[1]
    head = []
    for width in [2560, 2048]:
        head += [nn.Linear(features, width), nn.ReLU(inplace=True), nn.Dropout(0.2)]
        features = width
    return nn.Sequential(body, *head, nn.Linear(features, CLASSES))


def cnn3():
    """As `kintsugi model show cnn3`."""
    layers = []
    for before, channels in [(3, 32), (32, 64), (64, 128)]:
        layers += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * (side // 8) ** 2, CLASSES))


class Block(nn.Module):
    """He et al. 2016, figure 2."""

    def __init__(self, before, channels, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, channels, 3, stride, 1, bias=False),
            *norm_relu(channels),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
            nn.BatchNorm2d(channels),
        )
        changes = stride != 1 or before != channels
        shortcut = [nn.Conv2d(before, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)]
        self.shortcut = nn.Sequential(*shortcut) if changes else nn.Identity()

    def forward(self, x):
        return functional.relu(self.body(x) + self.shortcut(x))


def resnet_small(blocks):
    """He et al. 2016, section 4.2."""
    layers, before = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), *norm_relu(16)], 16
    for channels in (16, 32, 64):
        for index in range(blocks):
            layers.append(Block(before, channels, 2 if index == 0 and channels > 16 else 1))
            before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))


OWN = {
    "cnn3": cnn3,
    "cnn11": cnn11,
    "resnet20": lambda: resnet_small(3),
    "resnet56": lambda: resnet_small(9),
}


def build():
    if model_name in OWN:
        return OWN[model_name]()
    if model_name == "googlenet":
        return torchvision.models.googlenet(aux_logits=False, init_weights=False)
    return getattr(torchvision.models, model_name)()


class Step:
    def __init__(self, compiled):
        self.model = build().to(device, memory_format=torch.channels_last).train()
        self.forward = torch.compile(self.model) if compiled else self.model
        # Of one kernel on a card, where that is the fastest.
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4, fused=on_card or None
        )
        images = torch.randn(batch, 3, side, side)
        self.images = images.to(device, memory_format=torch.channels_last)
        self.labels = (torch.arange(batch) * 37 % CLASSES).to(device)

    def take(self):
        low = torch.autocast(device, dtype=torch.bfloat16)
        self.optimizer.zero_grad(set_to_none=True)
        with low if precision == "bf16" else contextlib.nullcontext():
            loss = functional.cross_entropy(self.forward(self.images), self.labels)
        loss.backward()
        self.optimizer.step()


def started(compiled):
    """A step that has been taken twice; None where that fails, which stderr explains."""
    try:
        step = Step(compiled)
        for _ in range(2):
            step.take()
        return step
    except Exception:
        traceback.print_exc()
        return None


def main():
    torch.set_num_threads(threads)
    if on_card:
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.benchmark = True
    elif precision == "tf32":
        sys.exit("tf32 is of cards")
    steps = {"eager": started(False), "compiled": started(True)}
    wait = torch.cuda.synchronize if on_card else lambda: None
    print("ready", flush=True)
    for line in sys.stdin:
        step = steps[line.strip()]
        wait()
        begun = time.perf_counter()
        if step:
            step.take()
        wait()
        print(time.perf_counter() - begun if step else "nan", flush=True)


main()
