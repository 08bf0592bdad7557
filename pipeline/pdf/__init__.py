"""What is read from a PDF, always in a killable, limited child process.

This is the parent's side: importing it loads no parser. The only importers of pymupdf are the modules that
`pipeline.pdf.child` runs.
"""

from pipeline.pdf.reader import PdfInfo, PdfReader, RenderedPage

__all__ = ["PdfInfo", "PdfReader", "RenderedPage"]
