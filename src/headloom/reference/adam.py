"""Adam in NumPy."""

import numpy as np

from headloom.reference.parts import Array


class Adam:
    """Kingma and Ba (2015), algorithm 1: m and v are running means of the gradient and of its square."""

    def __init__(self, weights: dict[str, Array], *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8):
        self.weights, self.beta1, self.beta2, self.epsilon = weights, beta1, beta2, epsilon
        self.m: dict[str, Array] = {}
        self.v: dict[str, Array] = {}
        self.num_steps = 0

    def step(self, gradients: dict[str, Array], *, learning_rate: float) -> None:
        """One update of the weights, in place."""
        self.num_steps += 1
        for name, gradient in gradients.items():
            m = self.m.setdefault(name, np.zeros_like(gradient))
            v = self.v.setdefault(name, np.zeros_like(gradient))
            m += (1 - self.beta1) * (gradient - m)
            v += (1 - self.beta2) * (gradient**2 - v)
            # Both means start at zero and are too small by these factors: section 3.
            unbiased_m = m / (1 - self.beta1**self.num_steps)
            unbiased_v = v / (1 - self.beta2**self.num_steps)
            self.weights[name] -= learning_rate * unbiased_m / (np.sqrt(unbiased_v) + self.epsilon)
