"""The images of a curation folder, as PNG files and as sheets of thumbnails, made in memory.

In: images.safetensors. Out: bytes that a browser shows. Guaranteed: images are read from disk one
by one, so that opening a large folder is quick; a file of another shape is named.
"""

from __future__ import annotations

import io
import threading
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from samepath.errors import UserError
from samepath.files import brief, opened_tensors

SHEET_SIDE = 2048
MAX_SHEET_PIXELS = 32 * 10**6
"""Of all thumbnails together: an exported page stays small enough to be sent."""
PNG_PIXELS = 2 * 10**6
"""Up to here sheets lose nothing; beyond, they are JPEG."""
THUMBNAIL_SIDES = (64, 48, 32, 24, 16)


class Pictures:
    """One small picture per example."""

    def __init__(self, path: Path) -> None:
        try:
            with opened_tensors(path, "np") as file:
                self._slice = file.get_slice("images")
            shape, kind = self._slice.get_shape(), self._slice.get_dtype()
        except (OSError, ValueError) as error:
            raise UserError(
                f"{path} cannot be read ({brief(error)}); run `samepath curate` again"
            ) from None
        right = len(shape) == 3 or (len(shape) == 4 and shape[3] == 3)
        if kind != "U8" or not right or min(shape[1:], default=0) < 1:
            raise UserError(
                f"{path} holds {kind} of shape {tuple(shape)}; images are bytes (U8) of shape "
                "(N, H, W) or (N, H, W, 3): run `samepath curate` again"
            )
        self.number, self.height, self.width = (int(size) for size in shape[:3])
        self.is_colour = len(shape) == 4
        self._lock = threading.Lock()

    def pixels(self, row: int) -> NDArray[np.uint8]:
        with self._lock:
            found: NDArray[np.uint8] = self._slice[row]
        return found

    def png(self, row: int) -> bytes:
        from PIL import Image

        out = io.BytesIO()
        Image.fromarray(self.pixels(row)).save(out, "PNG")
        return out.getvalue()

    def thumbnail_size(self) -> tuple[int, int]:
        """Width and height on a sheet."""
        longest = max(self.height, self.width)
        for side in THUMBNAIL_SIDES:
            share = min(1.0, side / longest)
            size = max(1, round(self.width * share)), max(1, round(self.height * share))
            if self.number * size[0] * size[1] <= MAX_SHEET_PIXELS:
                break
        return size

    def sheets(self) -> tuple[list[tuple[str, bytes]], tuple[int, int]]:
        """Thumbnails of all, in order, line by line: sheets as (media type, file), and how many
        thumbnails a sheet has across and down."""
        width, height = self.thumbnail_size()
        across, down = max(1, SHEET_SIDE // width), max(1, SHEET_SIDE // height)
        starts = range(0, self.number, across * down)
        return [self._sheet(start, across, down) for start in starts], (across, down)

    def _sheet(self, start: int, across: int, down: int) -> tuple[str, bytes]:
        from PIL import Image

        width, height = self.thumbnail_size()
        rows = min(across * down, self.number - start)
        size = across * width, -(-rows // across) * height
        sheet = Image.new("RGB" if self.is_colour else "L", size)
        for line in range(0, rows, across):
            with self._lock:
                found = self._slice[start + line : start + min(line + across, rows)]
            strip = Image.fromarray(np.ascontiguousarray(np.concatenate(found, axis=1)))
            small = strip.resize((len(found) * width, height), Image.Resampling.BOX)
            sheet.paste(small, (0, line // across * height))
        out = io.BytesIO()
        if self.number * width * height <= PNG_PIXELS:
            sheet.save(out, "PNG")
            return "image/png", out.getvalue()
        sheet.save(out, "JPEG", quality=80, subsampling=0)  # subsampling would mix neighbours
        return "image/jpeg", out.getvalue()
