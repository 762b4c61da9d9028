"""What torchvision makes of the pictures that tests/library/torchvision.rs names.

usage: torchvision.py FOLDER SEED SIZE. FOLDER/list has lines "SAMPLE PATH". Boxes come from
torchvision's own RandomResizedCrop.get_params, whose random numbers are taken from the sample's
stream (src/config/seed.rs). Writes FOLDER/pillow and FOLDER/tensor: levels, planes of SIZE x SIZE.
"""

import os
import sys
from pathlib import Path

# This file has the name of the package that it imports.
sys.path = [p for p in sys.path if os.path.abspath(p or ".") != os.path.dirname(os.path.abspath(__file__))]

import numpy as np
import torch
from PIL import Image
from torchvision import io, transforms
from torchvision.transforms import functional as pillow
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tensor

GOLDEN, MASK, AUGMENT, EPOCH = 0x9E3779B97F4A7C15, 2**64 - 1, 4, 0


def mix(z):
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


class Stream:
    def __init__(self, *parts):
        self.key, self.count = GOLDEN, 0
        for part in parts:
            self.key = mix(self.key ^ mix((part + GOLDEN) & MASK)) * (GOLDEN | 1) & MASK

    def word(self):
        self.count += 1
        return mix((self.key + self.count * GOLDEN) & MASK)

    def below(self, bound):
        return self.word() * bound >> 64

    def unit(self):
        return (self.word() >> 11) / 2**53


class Draws:
    """Stands for `torch` inside get_params: all but the random numbers is torch's."""

    def __init__(self, stream):
        self.stream = stream

    def __getattr__(self, name):
        return getattr(torch, name)

    def empty(self, _):
        return self

    def uniform_(self, low, high):
        return torch.tensor(float(low) + (float(high) - float(low)) * self.stream.unit(), dtype=torch.float64)

    def randint(self, low, high, size):
        return torch.tensor(low + self.stream.below(high - low))


def box(image, stream):
    module = sys.modules[transforms.RandomResizedCrop.__module__]
    kept, module.torch = module.torch, Draws(stream)
    try:
        return transforms.RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])
    finally:
        module.torch = kept


def main():
    folder, seed, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    with open(folder / "pillow", "wb") as of_pillow, open(folder / "tensor", "wb") as of_tensor:
        for line in (folder / "list").read_text().splitlines():
            sample, path = line.split(" ", 1)
            stream = Stream(seed, AUGMENT, EPOCH, int(sample))
            image = Image.open(path).convert("RGB")
            part = box(image, stream)
            flip = stream.below(2) == 1
            cut = pillow.resized_crop(image, *part, [size, size])
            levels = np.asarray(pillow.hflip(cut) if flip else cut)
            of_pillow.write(np.ascontiguousarray(levels.transpose(2, 0, 1)).tobytes())
            data = io.decode_jpeg(io.read_file(path), mode=io.ImageReadMode.RGB)
            cut = tensor.resized_crop(data, *part, [size, size], antialias=True)
            cut = tensor.horizontal_flip(cut) if flip else cut
            of_tensor.write(cut.contiguous().numpy().tobytes())


main()
