"""The zoo: architectures without files.

* ``light``: nine CNNs of the onnx wheel (AlexNet, DenseNet-121, Inception v1 and v2, ResNet-50, ShuffleNet, SqueezeNet,
  VGG-19, ZFNet-512);
* ``built-in``: BERT-base, GPT-2 and ViT-B/16, written from their published configurations;
* ``export``: with ``pip install 'dlbricks[zoo]'``, architectures of ``transformers`` built from their configurations.

Nothing is downloaded; weights are synthetic and made at execution. docs/reference/zoo.md lists every entry.
"""

from .catalog import fingerprint, names, open_structure, structure

__all__ = ["fingerprint", "names", "open_structure", "structure"]
