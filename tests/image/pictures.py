"""Picture files of every kind, and the RGB pixels that Pillow makes of them."""
import io
import struct
import zlib

import numpy as np
from PIL import Image, ImageOps, ImageSequence

Image.MAX_IMAGE_PIXELS = None


def scene(height, width, channels, seed):
    """Slopes, edges and noise: bytes [height, width, channels]."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    c = np.arange(channels)
    slopes = 127 + 60 * np.sin((x[..., None] + 3 * c) / (5 + 2 * c)) + 60 * np.cos((y[..., None] - 2 * c) / (7 + c))
    edges = np.where((x // 9 + y // 6)[..., None] % 3 == c % 3, 60, -20)
    return np.clip(slopes + edges + rng.integers(-25, 26, (height, width, channels)), 0, 255).astype(np.uint8)


def noise(height, width, channels, seed, top=256):
    return np.random.default_rng(seed).integers(0, top, (height, width, channels))


def saved(image, kind, **options):
    f = io.BytesIO()
    image.save(f, kind, **options)
    return f.getvalue()


# ---- PNG, as Pillow does not write it ----

def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png_rows(samples, depth):
    """Rows of samples [h, w, c], each with filter 0 before it."""
    rows = b""
    for row in samples.reshape(samples.shape[0], -1):
        if depth == 16:
            rows += b"\0" + row.astype(">u2").tobytes()
        elif depth == 8:
            rows += b"\0" + row.astype(np.uint8).tobytes()
        else:
            bits = (row[:, None] >> np.arange(depth - 1, -1, -1) & 1).reshape(-1)
            rows += b"\0" + np.packbits(bits).tobytes()
    return rows


ADAM7 = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]


def png(samples, depth, colour, interlaced=False, before=b"", behind=b""):
    height, width = samples.shape[:2]
    if interlaced:
        passes = [samples[y::dy, x::dx] for y, x, dy, dx in ADAM7]
        rows = b"".join(png_rows(p, depth) for p in passes if p.size)
    else:
        rows = png_rows(samples, depth)
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlaced))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + before + chunk(b"IDAT", zlib.compress(rows)) + behind + chunk(b"IEND", b"")


def palette(n, seed):
    return chunk(b"PLTE", noise(n, 3, 1, seed).astype(np.uint8).tobytes())


# ---- WebP, likewise ----

def webp_chunk(name, data):
    return name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)


def u24(n):
    return struct.pack("<I", n)[:3]


def webp_with_offset(frame, height, width, y, x, has_alpha):
    """An animation of one frame, which lies at y, x of a larger canvas."""
    file = saved(frame, "WEBP", lossless=True, exact=True)
    payload = file[12:] if file[12:16] != b"VP8X" else file[30:]
    body = webp_chunk(b"VP8X", bytes([0x02 | (0x10 if has_alpha else 0)]) + b"\0\0\0" + u24(width - 1) + u24(height - 1))
    body += webp_chunk(b"ANIM", b"\x10\x20\x30\xff" + b"\0\0")
    body += webp_chunk(b"ANMF", u24(x // 2) + u24(y // 2) + u24(frame.width - 1) + u24(frame.height - 1) + u24(100) + b"\x02" + payload)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


# ---- what is made of them ----

def over_white(rgba):
    c, a = rgba[..., :3].astype(np.uint32), rgba[..., 3:].astype(np.uint32)
    return ((c * a + 255 * (255 - a) + 127) // 255).astype(np.uint8)


def rgb_of(file):
    """[h, w, 3], as image/decode.h promises."""
    image = Image.open(io.BytesIO(file))
    image.load()
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would clip
        grey = (np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8)
        return np.repeat(grey[..., None], 3, 2)
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        return over_white(np.asarray(image.convert("RGBA")))
    return np.asarray(image.convert("RGB"))


def resized(rgb, height, width):
    return np.asarray(Image.fromarray(rgb).resize((width, height), Image.Resampling.BICUBIC))


def exif(orientation):
    e = Image.Exif()
    e[0x010F] = "Camera of a test"
    e[0x0112] = orientation
    return e


def jpegs(h, w, seed):
    rgb = Image.fromarray(scene(h, w, 3, seed))
    for subsampling in (0, 1, 2):
        for progressive in (False, True):
            yield f"jpeg-{'444 422 420'.split()[subsampling]}{'-progressive' * progressive}", saved(rgb, "JPEG", subsampling=subsampling, progressive=progressive, quality=83)
    yield "jpeg-grey", saved(Image.fromarray(scene(h, w, 1, seed)[..., 0]), "JPEG", quality=70)
    yield "jpeg-cmyk", saved(Image.fromarray(scene(h, w, 4, seed), "CMYK"), "JPEG", quality=90)
    yield "jpeg-rgb", saved(rgb, "JPEG", keep_rgb=True, quality=90)
    yield "jpeg-restarts", saved(rgb, "JPEG", restart_marker_blocks=1, quality=30)
    yield "jpeg-comment", saved(rgb, "JPEG", comment=b"said" * 50, icc_profile=b"no profile" * 30, dpi=(300, 300))


def pngs(h, w, seed):
    def trns(*values, depth=16):
        return chunk(b"tRNS", b"".join(struct.pack(">H" if depth == 16 else "B", v) for v in values))

    for interlaced in (False, True):
        name = "-interlaced" * interlaced
        for depth in (1, 2, 4, 8, 16):
            yield f"png-grey{depth}{name}", png(noise(h, w, 1, seed, 1 << depth), depth, 0, interlaced)
            if depth <= 8:
                n = 1 << depth
                yield f"png-palette{depth}{name}", png(noise(h, w, 1, seed, n), depth, 3, interlaced, palette(n, seed))
                yield f"png-palette{depth}-trns{name}", png(noise(h, w, 1, seed, n), depth, 3, interlaced, palette(n, seed) + trns(*(0, 130)[:n], depth=8))
        for depth in (8, 16):
            top = 1 << depth
            yield f"png-rgb{depth}{name}", png(noise(h, w, 3, seed, top), depth, 2, interlaced)
            yield f"png-grey-alpha{depth}{name}", png(noise(h, w, 2, seed, top), depth, 4, interlaced)
            yield f"png-rgba{depth}{name}", png(noise(h, w, 4, seed, top), depth, 6, interlaced)
    yield "png-grey8-trns", png(noise(h, w, 1, seed, 4) * 60, 8, 0, False, trns(120))
    yield "png-rgb8-trns", png(noise(h, w, 3, seed, 2) * 200, 8, 2, False, trns(200, 0, 200))
    yield "png-filters", saved(Image.fromarray(scene(h, w, 3, seed)), "PNG", optimize=True)
    yield "png-exif", saved(Image.fromarray(scene(h, w, 3, seed)), "PNG", exif=exif(6))
    yield "png-exif-behind", png(noise(h, w, 3, seed), 8, 2, behind=chunk(b"eXIf", exif(5).tobytes()[6:]))
    frames = [Image.fromarray(scene(h, w, 4, seed + i), "RGBA") for i in range(2)]
    yield "png-animated", saved(frames[0], "PNG", save_all=True, append_images=frames[1:])
    yield "png-gamma", png(noise(h, w, 3, seed), 8, 2, before=chunk(b"gAMA", struct.pack(">I", 100000)) + chunk(b"zTXt", b"a\0\0" + zlib.compress(b"b" * 9000)))


def webps(h, w, seed):
    rgb, rgba = Image.fromarray(scene(h, w, 3, seed)), Image.fromarray(scene(h, w, 4, seed), "RGBA")
    yield "webp-lossy", saved(rgb, "WEBP", quality=60)
    yield "webp-lossless", saved(rgb, "WEBP", lossless=True)
    yield "webp-lossy-alpha", saved(rgba, "WEBP", quality=60)
    yield "webp-lossless-alpha", saved(rgba, "WEBP", lossless=True, exact=True)
    yield "webp-exif", saved(rgb, "WEBP", lossless=True, exif=exif(8))
    for kind, frame in (("", rgb), ("-alpha", rgba)):
        more = [Image.fromarray(scene(h, w, len(frame.getbands()), seed + 1), frame.mode)]
        yield f"webp-animated{kind}", saved(frame, "WEBP", save_all=True, append_images=more, lossless=True, exact=True)
        yield f"webp-offset{kind}", webp_with_offset(frame, h + 11, w + 7, 4, 6, bool(kind))


def oriented(h, w, seed):
    for orientation in range(1, 10):
        yield f"jpeg-exif{orientation}", saved(Image.fromarray(scene(h, w, 3, seed)), "JPEG", exif=exif(orientation), subsampling=0)


def kinds(h, w, seed):
    """(name, file) of every kind, with pictures of h x w."""
    for source in (jpegs, pngs, webps, oriented):
        yield from source(h, w, seed)
