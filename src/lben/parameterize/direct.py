"""The equation of the direct forms, and its gradient.

With Psi = diag(e^d) and Lambda = Psi^-1,

    W = I - Psi (V'V + eps I + N - N' + (Wo'Wo + Lam U U' Lam)/(2 gamma)),

which is `direct_gamma`; without the last term it is `direct_rep`; with Psi = I besides, the monotone form of MON.
S = N - N' is skew-symmetric for any square N.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lben import checks
from lben.numerics.transforms import backward_rule


@dataclass(frozen=True, eq=False)
class Direct:
    """W of the direct forms, and what its gradient needs again.

    `outer` is the matrix of the products lam_i lam_j, and `gram` is Lam U U' Lam. What a form lacks is None.
    """

    W: Tensor
    psi: Tensor | None
    outer: Tensor | None
    gram: Tensor | None

    @staticmethod
    def build(
        V: Tensor, N: Tensor, d: Tensor | None, U: Tensor, Wo: Tensor, gamma: float | None, epsilon: Tensor
    ) -> Direct:
        """The equation at the head of this file, in place."""
        M = torch.addmm(N, V.T, V).sub_(N.T)
        M.diagonal().add_(epsilon)
        psi = outer = gram = None
        if d is not None:
            psi = torch.exp(d)
            if gamma is not None:
                lam = torch.exp(-d)
                outer = torch.outer(lam, lam)
                gram = torch.mm(U, U.T).mul_(outer)
                M.add_(gram, alpha=0.5 / gamma).addmm_(Wo.T, Wo, alpha=0.5 / gamma)
            M.mul_(psi[:, None])
        W = M.neg_()
        W.diagonal().add_(1)
        return Direct(W, psi, outer, gram)

    def pullback(
        self, G: Tensor, V: Tensor, U: Tensor, Wo: Tensor, gamma: float | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """From the gradient G of W to those of V, N, d, U and Wo, by calls that can be differentiated again."""
        H = -G if self.psi is None else G * -self.psi[:, None]
        both = H + H.T
        grad_d = grad_U = grad_Wo = None
        if self.psi is not None:
            grad_d = torch.linalg.vecdot(G, self.W) - G.diagonal()
        if gamma is not None and self.outer is not None and self.gram is not None and grad_d is not None:
            share = 0.5 / gamma
            grad_d = torch.sub(grad_d, torch.linalg.vecdot(both, self.gram), alpha=share)
            grad_U = torch.addmm(U, both * self.outer, U, beta=0, alpha=share)
            grad_Wo = torch.addmm(Wo, Wo, both, beta=0, alpha=share)
        return V @ both, H - H.T, grad_d, grad_U, grad_Wo


class DirectW(torch.autograd.Function):
    """W from V, N, d, U and Wo, with the backward written by hand: a third of the calls of autograd's own."""

    @staticmethod
    def forward(
        ctx: Any,
        V: Tensor,
        N: Tensor,
        d: Tensor | None,
        U: Tensor,
        Wo: Tensor,
        gamma: float | None,
        epsilon: Tensor,
    ) -> Tensor:
        direct = Direct.build(V, N, d, U, Wo, gamma, epsilon)
        ctx.gamma = gamma
        ctx.rest = (direct.psi, direct.outer, direct.gram)  # all but W, which would make a cycle of references
        ctx.save_for_backward(V, d, U, Wo, direct.W)
        return direct.W

    @staticmethod
    @backward_rule
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        V, d, U, Wo, W = ctx.saved_tensors
        direct, gamma = Direct(W, *ctx.rest), ctx.gamma
        if torch.is_grad_enabled() and d is not None:  # a second derivative is wanted: everything with its history
            lam = torch.exp(-d)
            outer = torch.outer(lam, lam)
            gram = None if gamma is None else (U @ U.T) * outer
            direct = Direct(W, torch.exp(d), outer, gram)
        return *direct.pullback(grads[0], V, U, Wo, gamma), None, None


def direct_weight(
    V: Tensor, N: Tensor, d: Tensor | None, U: Tensor, Wo: Tensor, gamma: float | None, epsilon: Tensor
) -> Tensor:
    """W, with its history."""
    if checks.transformed():
        return _transparent(V, N, d, U, Wo, gamma, epsilon)
    W: Tensor = DirectW.apply(V, N, d, U, Wo, gamma, epsilon)  # type: ignore[no-untyped-call]
    return W


def _transparent(
    V: Tensor, N: Tensor, d: Tensor | None, U: Tensor, Wo: Tensor, gamma: float | None, epsilon: Tensor
) -> Tensor:
    """The same by calls that every transform of torch knows."""
    identity = torch.eye(len(N), dtype=N.dtype, device=N.device)
    M = V.T @ V + epsilon * identity + N - N.T
    if d is None:
        return identity - M
    if gamma is not None:
        into = torch.exp(-d)[:, None] * U
        M = M + (Wo.T @ Wo + into @ into.T) / (2 * gamma)
    return identity - torch.exp(d)[:, None] * M
