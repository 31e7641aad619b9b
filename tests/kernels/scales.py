"""Where the f16 scales of each type's block lie, and how tests set them. Only tests import it."""
import numpy as np

HALVES = {  # byte offsets of the scale and the minimum in a block
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,),
    "IQ4_NL": (0,), "MXFP4": (),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_XS": (0,),
    "IQ1_S": (0,), "IQ1_M": (48,), "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,), "IQ3_XXS": (0,), "IQ3_S": (0,),
    "NVFP4": (), "Q1_0": (0,), "Q2_0": (0,), "TQ1_0": (52,), "TQ2_0": (64,),
}  # fmt: skip


def set_half(blocks, name, at, value):
    """The half at `at` of every block [n, bytes]: one value, or one per block. IQ1_M's is spread over the top
    nibbles of four words, lowest first."""
    halves = np.broadcast_to(np.asarray(value, np.float16), len(blocks)).copy().view(np.uint8).reshape(-1, 2)
    if name == "IQ1_M":
        nibbles = np.stack([halves & 15, halves >> 4], axis=2).reshape(-1, 4)
        blocks[:, at + 1:at + 8:2] = blocks[:, at + 1:at + 8:2] & 15 | nibbles << 4
    else:
        blocks[:, at:at + 2] = halves


def halves(blocks, name, at):
    """What set_half wrote, as float32 [n]."""
    if name == "IQ1_M":
        nibbles = blocks[:, at + 1:at + 8:2].astype("u2") >> 4
        return (nibbles << [0, 4, 8, 12]).sum(axis=1).astype("u2").view("f2").astype("f4")
    return blocks[:, at:at + 2].copy().view("f2").astype("f4").ravel()
