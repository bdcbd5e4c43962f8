"""How the small model starts: random weights, but the heads of the first layer see the tokens before.

To copy, a model looks for a place where the last token stood before, and takes what follows it there. Two
layers do that together (Olsson et al., arXiv 2209.11895): one tells each token which one stands before it, a
later one looks for that. Such a first layer is what a small model on a CPU waits for longest. One head sees
the token before, one the second before, one the third. Between a key and its value stand three tokens that
are the same in all notes of a kind, so the fourth head sees the key before them: about seven tokens at once.
"""

from typing import Any

import torch

# For each head: how many tokens it looks back; the sharpness of its look, whose square is the weight of the
# cosines that agree at that distance; and the first rotary frequency used: without the fastest, it is wide.
_HEADS = ((1, 6.0, 0), (2, 6.0, 0), (3, 6.0, 0), (7, 4.0, 2))
_LOUDNESS = 4.0  # of what a head says, over the random start


def look_back(model: Any) -> None:
    """Have the first heads of the first layer attend to the tokens before.

    Query and key are biases, the same for each token. Rotary positions turn them by an angle for each token
    between; the query is turned back by the distance, so that they agree best there.
    """
    config, layer = model.config, model.model.layers[0].self_attn
    size = config.hidden_size // config.num_attention_heads
    angles = config.rope_parameters["rope_theta"] ** (-torch.arange(size // 2) / (size // 2))
    for head, (distance, sharpness, fastest) in enumerate(_HEADS):
        rows, turned = slice(head * size, (head + 1) * size), distance * angles
        for part in (layer.q_proj, layer.k_proj):
            part.weight[rows] = 0
        used = sharpness * (torch.arange(size // 2) >= fastest)
        layer.k_proj.bias[rows] = torch.cat([used, torch.zeros(size // 2)])
        layer.q_proj.bias[rows] = torch.cat([used * turned.cos(), -used * turned.sin()])
        layer.v_proj.weight[rows] *= _LOUDNESS
        layer.o_proj.weight[:, rows] *= _LOUDNESS
