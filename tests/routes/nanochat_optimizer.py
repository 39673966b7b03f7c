"""nanochat's optimizer for its own trunk: Muon with its additions for matrices, AdamW for the rest.

One step on a matrix P (m x n) with gradient G, momentum mu, variance decay beta, rate eta:

    M <- mu M + (1 - mu) G,    X = (1 - mu) G + mu M                     Nesterov
    X <- X diag(|X|_F / (sqrt(m) |x_i|))                                 rows of equal norm (MuonEq)
    X <- X / (1.01 |X|_F),    X <- a X + (b A + c A^2) X, A = X X^T      five times (Polar Express)
    X <- X sqrt(min(m, n)) / |X|_F                                       (Muon+)
    s <- beta s + (1 - beta) mean of X^2 along the longer axis
    X <- X / sqrt(s), at the Frobenius norm that it had                  (NorMuon)
    P <- P - eta sqrt(max(1, m / n)) (X + lambda P [X P >= 0])           cautious decay

Sources: karpathy/nanochat 92d63d4; arXiv:2603.28254, 2505.16932, 2602.21545, 2510.05491.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lrt_lab.decoder import Decoder
from lrt_lab.training.optimizer import Together, named_groups

#: a, b, c of the five polynomials.
POLAR = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)


class Muon(torch.optim.Optimizer):
    """The steps above."""

    def __init__(self, params: Any, lr: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.momentum, self.beta = 0.95, 0.9

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                state["momentum"].lerp_(p.grad, 1 - self.momentum)
                x = orthogonal(p.grad.lerp(state["momentum"], self.momentum))
                x = self.levelled(x, state)
                rate = group["lr"] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5
                p.sub_(rate * (x + group["weight_decay"] * p * (x * p >= 0)))

    def levelled(self, x: Tensor, state: dict[str, Tensor]) -> Tensor:
        """X with its rows, or its columns where these are longer, at a common scale over time."""
        square = x.square().mean(-1 if x.shape[0] >= x.shape[1] else -2, keepdim=True)
        if "square" not in state:
            state["square"] = torch.zeros_like(square)
        scale = state["square"].lerp_(square, 1 - self.beta).clamp_min(1e-10).rsqrt()
        return x * scale * (x.norm() / (x * scale).norm())


def orthogonal(x: Tensor) -> Tensor:
    """Nearly the orthogonal factor of X, rows evened out beforehand."""
    x = x * x.norm() / x.shape[0] ** 0.5 / x.norm(dim=-1, keepdim=True).clamp_min(1e-6)
    wide = x.mT if x.shape[0] > x.shape[1] else x
    wide = wide / (wide.norm() * 1.01 + 1e-6)
    for a, b, c in POLAR:
        gram = wide @ wide.mT
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    x = wide.mT if x.shape[0] > x.shape[1] else wide
    return x * min(x.shape) ** 0.5 / x.norm()


def nanochat_optimizer(decoder: Decoder, weight_decay: float) -> Together:
    """The trunk's optimizer; the learned gains, which nanochat does not have, stay as they are."""
    roles = named_groups(decoder)
    scale = (decoder.shape.width / 768) ** -0.5
    groups = []

    def adam(names: list[str], lr: float, betas: tuple[float, float], decay: float) -> None:
        params = [decoder.get_parameter(name) for name in names]
        groups.append({"params": params, "lr": lr, "betas": betas, "weight_decay": decay})

    tables = [name for name in roles["embedding"] if name != "embedding"]
    adam(["head"], 0.004 * scale, (0.8, 0.96), 0.01)
    adam(["embedding"], 0.2 * scale, (0.8, 0.995), 0.001)
    adam(tables, 0.1 * scale, (0.8, 0.995), 0.01)
    adam(["backbone.stream"], 0.005, (0.8, 0.95), 0.05)
    adam(["backbone.skip"], 0.5, (0.96, 0.95), 0.0)
    adam(["smear", "smear_gate", "backbone.out"], 0.2, (0.8, 0.95), 0.0)
    muon = Muon(list(roles["matrix"].values()), 0.02, weight_decay)
    return Together([muon, torch.optim.AdamW(groups, eps=1e-10)])
