"""Compiles tokenizer.json to vocabulary.bin, which the C tokenizer reads on the device."""
