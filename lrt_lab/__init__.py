"""lrt-lab: how should hidden state travel in a language model?"""

__version__ = "0.1.0"
