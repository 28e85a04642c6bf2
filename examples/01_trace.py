"""A function becomes a program: look at the names, the types, and the lines it came from."""

import functx
import functx.numpy as np


def predict(weights, bias, x):
    hidden = np.tanh(x @ weights + bias)
    return hidden.mean(axis=-1)


program = functx.make_ir(predict)(np.ones((3, 4)), np.zeros(4), np.ones((2, 3)))
print(program)

# A program is a value: it reads back from its text, and it is a function again.
again = functx.Program.parse(str(program))
assert again == program
out = program(np.ones((3, 4)), np.zeros(4), np.ones((2, 3)))
assert np.allclose(out, np.tanh(3.0))
