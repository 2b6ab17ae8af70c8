"""Exports an encoder from a Hugging Face folder to ONNX: `export_model.py FOLDER OUTPUT.onnx`."""

from __future__ import annotations

import sys

import torch
from transformers import AutoModel


class Encoder(torch.nn.Module):
    """input_ids, attention_mask -> last_hidden_state."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        output = self.model(input_ids=input_ids, attention_mask=attention_mask)
        hidden: torch.Tensor = output.last_hidden_state
        return hidden


def main(folder: str, output: str) -> None:
    model = AutoModel.from_pretrained(folder).eval()
    torch.manual_seed(0)
    ids = torch.randint(0, model.config.vocab_size, (2, 16))
    batch = torch.export.Dim("batch")
    sequence = torch.export.Dim("sequence", max=model.config.max_position_embeddings)
    torch.onnx.export(
        Encoder(model).eval(),
        (ids, torch.ones_like(ids)),
        output,
        dynamo=True,
        input_names=["input_ids", "attention_mask"],
        output_names=["last_hidden_state"],
        dynamic_shapes=({0: batch, 1: sequence}, {0: batch, 1: sequence}),
        external_data=False,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
