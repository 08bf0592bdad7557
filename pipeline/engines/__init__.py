"""Engines that need no GPU: OCR, the lexical late-interaction encoder and BM25."""
