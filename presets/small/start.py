"""How the small model starts: random weights, but three heads of the first layer see the tokens before.

To copy, a model looks for a place where the last token stood before, and takes what follows it there. Two
layers do that together (Olsson et al., arXiv 2209.11895): one tells each token which one stands before it, a
later one looks for that. Such a first layer is what a small model on a CPU waits for longest. A key is of
several tokens, and so are the words between it and its value: one head sees the token before, one the second
before, one the third.
"""

from typing import Any

import torch

_BACK = (1, 2, 3)  # tokens, a head for each
_SHARPNESS = 6.0  # of what a head looks at: 98% of it is that token
_LOUDNESS = 4.0  # of what it says, over the random start


def look_back(model: Any) -> None:
    """Have the first heads of the first layer attend to the tokens before.

    Query and key are biases, the same for each token. Rotary positions turn them by an angle for each token
    between; the query is turned back by the distance, so that they agree best there.
    """
    config, layer = model.config, model.model.layers[0].self_attn
    size = config.hidden_size // config.num_attention_heads
    angles = config.rope_parameters["rope_theta"] ** (-torch.arange(size // 2) / (size // 2))
    for head, distance in enumerate(_BACK):
        rows, turned = slice(head * size, (head + 1) * size), distance * angles
        for part in (layer.q_proj, layer.k_proj):
            part.weight[rows] = 0
        layer.k_proj.bias[rows] = _SHARPNESS * torch.cat([torch.ones(size // 2), torch.zeros(size // 2)])
        layer.q_proj.bias[rows] = _SHARPNESS * torch.cat([turned.cos(), -turned.sin()])
        layer.v_proj.weight[rows] *= _LOUDNESS
        layer.o_proj.weight[:, rows] *= _LOUDNESS
