"""What torchvision makes of the pictures that tests/library/torchvision.rs names.

usage: torchvision.py FOLDER SEED SIZE LOOK. FOLDER/list has lines "SAMPLE PATH". LOOK is
  random             RandomResizedCrop, flip
  resized SHORTER    Resize, CenterCrop, flip
  jittered B C S H   CenterCrop, flip, ColorJitter
  drafted            what Pillow's draft decodes at that SIZE, flip
Draws come from torchvision's own get_params, whose random numbers are taken from the sample's
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

    def randperm(self, count):
        order = list(range(count))
        for last in range(count - 1, 0, -1):
            other = self.stream.below(last + 1)
            order[last], order[other] = order[other], order[last]
        return torch.tensor(order)


def drawn(transform, stream, *arguments):
    module = sys.modules[transform.__module__]
    kept, module.torch = module.torch, Draws(stream)
    try:
        return transform.get_params(*arguments)
    finally:
        module.torch = kept


def jittered(functional, image, order, factors):
    names = ["brightness", "contrast", "saturation", "hue"]
    for kind in order:
        if factors[kind] is not None:
            image = getattr(functional, "adjust_" + names[kind])(image, factors[kind])
    return image


def views(look, size, stream, image, data):
    """The view of one picture in both of torchvision's ways: through Pillow and as a tensor."""
    if look[0] == "random":
        part = drawn(transforms.RandomResizedCrop, stream, image, [0.08, 1.0], [3 / 4, 4 / 3])
        cuts = pillow.resized_crop(image, *part, [size, size]), tensor.resized_crop(data, *part, [size, size], antialias=True)
    elif look[0] == "resized":
        shorter = [int(look[1])]
        cuts = pillow.resize(image, shorter), tensor.resize(data, shorter, antialias=True)
        cuts = pillow.center_crop(cuts[0], [size]), tensor.center_crop(cuts[1], [size])
    else:
        cuts = pillow.center_crop(image, [size]), tensor.center_crop(data, [size])
    if stream.below(2) == 1:
        cuts = pillow.hflip(cuts[0]), tensor.horizontal_flip(cuts[1])
    if look[0] == "jittered":
        jitter = transforms.ColorJitter(*map(float, look[1:]))
        ranges = jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue
        order, *factors = drawn(transforms.ColorJitter, stream, *ranges)
        cuts = [jittered(way, cut, order, factors) for way, cut in zip([pillow, tensor], cuts)]
    return cuts


def read(path, look, size):
    image = Image.open(path)
    if look[0] == "drafted":
        image.draft("RGB", (size, size))
    image = image.convert("RGB")
    if path.endswith(".jpg") and look[0] != "drafted":
        return image, io.decode_jpeg(io.read_file(path), mode=io.ImageReadMode.RGB)
    return image, pillow.pil_to_tensor(image)


def main():
    folder, seed, size, look = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    with open(folder / "pillow", "wb") as of_pillow, open(folder / "tensor", "wb") as of_tensor:
        for line in (folder / "list").read_text().splitlines():
            sample, path = line.split(" ", 1)
            stream = Stream(seed, AUGMENT, EPOCH, int(sample))
            cut, levels = views(look, size, stream, *read(path, look, size))
            of_pillow.write(np.ascontiguousarray(np.asarray(cut).transpose(2, 0, 1)).tobytes())
            of_tensor.write(levels.contiguous().numpy().tobytes())


main()
