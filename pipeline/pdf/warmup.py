# mypy: untyped-calls-exclude=pymupdf
"""One tiny page read in every format before the first real one: what a library loads late, it loads now.

After this the child can open no file, so a module that is still missing is missing for good.
"""

from __future__ import annotations

from PIL import JpegImagePlugin, PngImagePlugin, WebPImagePlugin

from pipeline.pdf.document import OpenPdf
from pipeline.pdf.page import PageOptions, read_page

_PLUGINS = (JpegImagePlugin, PngImagePlugin, WebPImagePlugin)
"""Imported by name, or Pillow imports all of its forty plugins to find the one for WebP."""
_CONTENT = b"BT /F 9 Tf 9 9 Td (page) Tj ET " + 2 * b"q 9 0 0 9 0 0 cm BI /W 1 /H 1 /BPC 8 /CS /G ID 0 EI Q "
_PDF = b"""%%PDF-1.7
1 0 obj <</Type/Catalog/Pages 2 0 R/PageLabels<</Nums[0<</S/r/P(A-)>>]>>>> endobj
2 0 obj <</Type/Pages/Kids[3 0 R]/Count 1>> endobj
3 0 obj <</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>> endobj
4 0 obj <</Length %d>> stream
%s
endstream endobj
5 0 obj <</Type/Font/Subtype/Type1/BaseFont/Helvetica>> endobj
trailer <</Root 1 0 R>>
""" % (len(_CONTENT), _CONTENT)
"""Without a cross-reference table, so that a repair is part of it."""


def warm_up() -> None:
    """Raises whatever is wrong with the installation."""
    pdf = OpenPdf(_PDF)
    pdf.describe(1)
    for image_format in ("jpeg", "webp", "png"):
        read_page(pdf, 0, _options(image_format))
    pdf.close()


def _options(image_format: str) -> PageOptions:
    return PageOptions(
        dpi=72,
        max_pixels=10_000,
        image_format=image_format,
        quality=85,
        longest_side_in=200,
        text_bytes=1_000,
        evidence_bytes=10_000,
    )
