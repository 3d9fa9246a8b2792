"""Pictures against Pillow, bit for bit: files of every kind, and resizing."""
import os
import random
import subprocess
import tempfile
import unittest

import numpy as np
from PIL import Image

import pictures

PROBE = os.environ["TD_IMAGE_PROBE"]
SEED = int(os.environ.get("TD_TEST_SEED", random.randrange(1 << 20)))
SIZES = [(1, 1), (7, 5), (31, 100), (64, 48), (17, 16), (129, 67)]
RESIZES = [(1, 1, 64, 64), (40, 30, 20, 15), (40, 30, 41, 29), (40, 30, 300, 7), (1000, 31, 64, 1472), (31, 1000, 1472, 64), (900, 700, 32, 32),
           (33, 47, 33, 96), (33, 47, 96, 47), (64, 64, 64, 64), (3, 2, 500, 800), (768, 1024, 448, 608), (290, 3, 3, 5)]


class Pillow(unittest.TestCase):
    def setUp(self):
        self.rng = random.Random(SEED)
        self.file = tempfile.NamedTemporaryFile(prefix="td_picture_")
        self.addCleanup(self.file.close)

    def probe(self, file, what, *args):
        with open(self.file.name, "wb") as f:
            f.write(file)
        done = subprocess.run([PROBE, what, self.file.name, *map(str, args)], capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        head, _, pixels = done.stdout.partition(b"\n")
        height, width = map(int, head.split())
        return np.frombuffer(pixels, np.uint8).reshape(height, width, 3)

    def same(self, got, want):
        self.assertEqual(got.shape, want.shape)
        off = np.abs(got.astype(int) - want.astype(int))
        self.assertEqual(off.max(), 0, f"{(off > 0).mean():.4f} of the values differ")

    def test_every_kind_of_file(self):
        sizes = SIZES if os.environ.get("TD_TEST_FULL") else self.rng.sample(SIZES, 2)
        for h, w in sizes:
            for name, file in pictures.kinds(h, w, self.rng.randrange(1000)):
                with self.subTest(name, h=h, w=w, seed=SEED):
                    self.same(self.probe(file, "decode"), pictures.rgb_of(file))

    def test_resizing(self):
        for h, w, to_h, to_w in RESIZES:
            for make in (pictures.scene, pictures.noise):
                with self.subTest(f"{h}x{w} to {to_h}x{to_w}", make=make.__name__, seed=SEED):
                    rgb = make(h, w, 3, self.rng.randrange(1000)).astype(np.uint8)
                    self.same(self.probe(pictures.saved(Image.fromarray(rgb), "PNG"), "resize", to_h, to_w), pictures.resized(rgb, to_h, to_w))

    def test_any_sizes(self):
        for _ in range(20):
            h, w, to_h, to_w = (self.rng.randint(3, 300) for _ in range(4))  # image/resize.h: not 100 times as high as wide
            with self.subTest(f"{h}x{w} to {to_h}x{to_w}", seed=SEED):
                rgb = pictures.noise(h, w, 3, self.rng.randrange(1000)).astype(np.uint8)
                self.same(self.probe(pictures.saved(Image.fromarray(rgb), "PNG"), "resize", to_h, to_w), pictures.resized(rgb, to_h, to_w))
